"""Random values come out of the log as the server itself reads them back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json

from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Database

COLUMNS = ("texts", "grid", "n", "ns", "j", "jb", "js", "ts", "tz", "tzs", "b", "bs")
TABLE = (
    "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, texts text[], grid text[], n numeric, "
    "ns numeric[], j json, jb jsonb, js jsonb[], ts timestamp, tz timestamptz, tzs timestamptz[], b bytea, bs bytea[])"
)
ISO = 'YYYY-MM-DD"T"HH24:MI:SS.US'

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
words = st.text(st.one_of(characters, st.sampled_from('"\\{},; \n\t')), max_size=20) | st.sampled_from(["NULL", "null"])
special = [Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity"), Decimal(10) ** 500, Decimal(10) ** -500]
numbers = st.decimals(-(10**40), 10**40, allow_nan=False) | st.sampled_from(special)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)
spaced = st.sampled_from([None, 0, 2, "\t"])
moments = st.datetimes()


def grids(cells: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Two dimensions, as PostgreSQL has them: every line as long as the others."""
    line = st.integers(1, 3).flatmap(lambda size: st.lists(st.lists(cells, min_size=size, max_size=size), max_size=3))
    return line


def listed(cells: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.none() | cells, max_size=5)


def spelled(document: Any, indent: int | str | None, ascii_only: bool) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=ascii_only)


rows = st.tuples(
    listed(words),
    grids(st.none() | words),
    numbers,
    listed(numbers),
    st.builds(spelled, documents, spaced, st.booleans()),
    documents.map(Json),
    listed(documents.map(Json)),
    moments | st.sampled_from(["infinity", "-infinity"]),
    moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    listed(moments.map(lambda moment: moment.replace(tzinfo=UTC))),
    st.binary(max_size=50),
    listed(st.binary(max_size=9)),
)


@pytest.fixture(scope="module")
def running(
    postgres_server: Callable[[int], PostgresServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Capturing]:
    with Database(postgres_server(18)) as db:
        db.run(TABLE)
        with Capturing(db, tmp_path_factory.mktemp("round_trip") / "log") as run:
            yield run


# Not shrunk: every attempt is a transaction through a server, and the row that differs says enough.
@settings(max_examples=25, deadline=None, print_blob=True, phases=(Phase.reuse, Phase.generate))
@given(st.lists(rows, min_size=1, max_size=12))
def test_what_the_log_has_is_what_the_server_says(running: Capturing, batch: list[tuple[Any, ...]]) -> None:
    holes = ", ".join(["%s"] * 12)
    with running.db.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for row in batch:
            cursor.execute(f"INSERT INTO t ({', '.join(COLUMNS)}) VALUES ({holes})".encode(), row)
        cursor.execute("COMMIT")
    captured = [json.loads(row["after"]) for row in running.changes()[-len(batch) :]]
    for ours, theirs in zip(captured, said(running.db, len(batch)), strict=True):
        assert ours == expected(*theirs)


def said(db: Database, count: int) -> list[Any]:
    """The newest rows as the server gives them, in forms that owe nothing to the decoder."""
    query = (
        "SELECT id, texts, grid, n::text, ns::text[], j, jb, js, "
        "CASE WHEN isfinite(ts) THEN to_char(ts, %(iso)s) ELSE ts::text END, to_char(tz AT TIME ZONE 'UTC', %(utc)s), "
        "ARRAY(SELECT to_char(u.tz AT TIME ZONE 'UTC', %(utc)s) FROM unnest(tzs) WITH ORDINALITY AS u (tz, place) "
        "ORDER BY u.place), b, bs FROM t ORDER BY id DESC LIMIT %(count)s"
    )
    with db.connect() as connection:
        return connection.execute(query, {"iso": ISO, "utc": ISO + '"Z"', "count": count}).fetchall()[::-1]


def expected(number: int, *said: Any) -> dict[str, Any]:
    *others, data, parts = said
    encoded = [base64.b64encode(part).decode() if part is not None else None for part in (data, *parts)]
    return {"id": number, **dict(zip(COLUMNS, (*others, encoded[0], encoded[1:]), strict=True))}
