"""Every value that PostgreSQL's source captures comes into a mirror, and is spelled there as the log spells it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from tailrace.kinds import Kind
from tailrace.schema import Column, TableSchema
from tailrace.sinks.postgres import columns, fold
from tailrace.sinks.postgres.connection import Session
from tailrace.sinks.postgres.merge import Merge
from tailrace.sinks.postgres.shape import Table, wanted
from tailrace.testing.servers import PostgresServer
from tests.capture.postgres.kinds import kind_of
from tests.capture.postgres.values import VALUES, Value, values
from tests.capture.running import Database
from tests.sinks.postgres.mirrors import mirror

NEWEST = 18


@pytest.fixture
def session(postgres: PostgresServer) -> Iterator[Session]:
    with Database(postgres) as db:
        found = mirror(db).address().connect()
        yield found
        found.close()


@pytest.mark.parametrize("group", VALUES)
def test_every_value_of_every_type(session: Session, group: str) -> None:
    found = [each for each in values(group, NEWEST) if _is_there(each)]
    schema = TableSchema(1, "d", "public", group, tuple(map(_column, found)), ())
    table = Table(session, "public", group)
    table.create(schema)
    merge = Merge(session, table, schema, wanted(schema))
    image = "{" + ",".join(f"{json.dumps(each.column)}:{each.json}" for each in found) + "}"
    row = pa.record_batch({"op": ["c"], "key": pa.nulls(1, pa.string()), "after": [image]})
    merge.append([fold.whole(row, merge.names)])
    for each in found:
        kept = columns.spelled(sql.Identifier(each.column), merge.types[each.column])
        [(text,)] = session.rows(sql.SQL("SELECT {} FROM {}").format(kept, table.identifier))
        assert text is not None, each
        assert _same(text, each, merge.types[each.column]), (each, merge.types[each.column], text)


def _is_there(value: Value) -> bool:
    """A JSON null in a document is the same to the log as no document at all."""
    return value.json != "null"


def _column(value: Value) -> Column:
    return Column(value.column, value.type, kind=Kind.parse(kind_of(value.type)))


def _is_nested_bytes(kind: str, value: Value) -> bool:
    """PostgreSQL's JSON has them in hexadecimal digits."""
    return kind == "bytea[]" and value.json.startswith("[[")


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str)


def _plain(found: Any) -> Any:
    """Numbers and their texts are the same in an array, and so are times with and without zeros at their end."""
    if isinstance(found, list):
        return [_plain(each) for each in found]
    text = found if isinstance(found, str) or found is None else json.dumps(found)
    return text and re.sub(r"(:\d\d)\.0*(?=Z|$)|(?<=\.\d)(\d*?)0+(?=Z|$)", r"\1\2", text)


def _same(text: str, value: Value, kind: str) -> bool:
    """Whether it is what the log says: the JSON itself of documents and arrays, what it stands for of all else."""
    if kind == "json":
        return text == value.json.strip()
    if kind.endswith("[]"):
        return _is_nested_bytes(kind, value) or _plain(_parsed(text)) == _plain(_parsed(value.json))
    plain = json.loads(value.json) if value.json.startswith('"') else value.json
    return bool(text == plain)
