"""Every value of the table in `values.py` becomes the JSON it names, on every path and every major version."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import psycopg
import pytest

from tailrace.capture.staging import left_behind, read_staged
from tailrace.changelog import LogReader
from tailrace.contracts import ChunkId, Extent
from tailrace.schema import TableSchema
from tailrace.sinks.lake.columns import is_document, is_verbatim, type_of
from tailrace.testing.servers import PostgresServer
from tests.capture.postgres.kinds import MAY_NEST, kind_of, lake_of
from tests.capture.postgres.values import OFFERS, VALUES, Value, changes, creation, values
from tests.capture.running import Capturing, Change, Database

MAJORS = (15, 16, 18)
UNSTORABLE = {"gtsvector"}
"""The built-in type that has no input: no column can hold a value of it."""


class Shelf(Database):
    """A database with every value: a table GROUP with rows 1 and 2, and what a capture saw of it and of GROUP_full."""

    changes: list[Change]
    versions: Mapping[int, TableSchema]

    def image(self, table: str, op: str, side: str) -> dict[str, str]:
        """The columns of a change's row image, each its JSON text."""
        [found, *_] = [row for row in self.changes if (row["table"], row["op"]) == (table, op)]
        assert found["unchanged"] is None
        return split(found[side])


Path = Callable[[Shelf, str], dict[str, str]]
"""A way from a group's table to the JSON text of its columns."""


def inserted(db: Shelf, table: str) -> dict[str, str]:
    return db.image(table, "c", "after")


def updated(db: Shelf, table: str) -> dict[str, str]:
    return db.image(table, "u", "after")


def updated_under_full_identity(db: Shelf, table: str) -> dict[str, str]:
    return db.image(f"{table}_full", "u", "after")


def old_under_full_identity(db: Shelf, table: str) -> dict[str, str]:
    return db.image(f"{table}_full", "u", "before")


def deleted_under_full_identity(db: Shelf, table: str) -> dict[str, str]:
    return db.image(f"{table}_full", "d", "before")


def read_by_a_snapshot(db: Shelf, table: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        staged = db.source().read_chunk(ChunkId("run", "public", table, 0), Extent(filter="id = 1"), FilePath(folder))
        [(batch, _)] = read_staged(FilePath(staged.file))
    [row] = batch.to_pylist()
    return split(row["after"])


PATHS: list[Path] = [
    read_by_a_snapshot,
    inserted,
    updated,
    updated_under_full_identity,
    old_under_full_identity,
    deleted_under_full_identity,
]
"""A further path is a further function here."""


@pytest.fixture(scope="module", params=MAJORS)
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def shelf(
    major: int,
    postgres_server: Callable[[int], PostgresServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shelf]:
    with Shelf(postgres_server(major)) as db:
        db.run(*creation(major))
        with Capturing(db, tmp_path_factory.mktemp("values") / "log") as run, db.connect() as connection:
            for statement, parameters in changes(major):
                connection.execute(statement.encode(), parameters)
            db.changes = run.changes()
            db.versions = LogReader(run.path).schemas
        yield db


@pytest.mark.parametrize("group", VALUES)
@pytest.mark.parametrize("path", PATHS)
def test_values(shelf: Shelf, path: Path, group: str) -> None:
    columns = _columns(shelf, group)
    found = path(shelf, group)
    wrong = [
        (each.type, each.texts[0][:80], found[each.column][:200], each.json[:200])
        for each in columns
        if found[each.column] != each.json
    ]
    assert not wrong
    assert found.keys() - {"id", "n"} == {each.column for each in columns}


@pytest.mark.parametrize("group", VALUES)
def test_nulls(shelf: Shelf, group: str) -> None:
    """The row that was made empty before it got its values."""
    [_, empty] = [row for row in shelf.changes if (row["table"], row["op"]) == (group, "c")]
    assert split(empty["after"]) == {"id": "2", "n": "null", **{each.column: "null" for each in _columns(shelf, group)}}


@pytest.mark.parametrize("group", VALUES)
def test_kinds(shelf: Shelf, group: str) -> None:
    """What the stream says and what a snapshot says; it survives being written down."""
    expected = {"id": "int32", "n": "int32", **{each.column: kind_of(each.type) for each in _columns(shelf, group)}}
    [streamed] = [each for each in shelf.versions.values() if each.table == group]
    for version in (streamed, _snapshot_version(shelf, group)):
        assert {column.name: str(column.kind) for column in version.columns} == expected
        assert {column.name: column.nullable for column in version.columns if not column.nullable} == {"id": False}
        again = TableSchema.from_dict(json.loads(json.dumps(version.as_dict())))
        assert repr(again) == repr(version)


@pytest.mark.parametrize("group", VALUES)
def test_lake_types(shelf: Shelf, group: str) -> None:
    """The same of a version whose columns say their kind and of one from before they did."""
    types = {each.column: each.type for each in _columns(shelf, group)}
    [version] = [each for each in shelf.versions.values() if each.table == group]
    written = version.as_dict()
    older = TableSchema.from_dict({**written, "columns": [_without_kind(each) for each in written["columns"]]})
    for now, before in zip(version.columns[2:], older.columns[2:], strict=True):
        kind = kind_of(types[now.name])
        for column in (now, before):
            assert type_of(column.kind, variant=False).simpleString() == lake_of(kind), now.type
            assert is_document(column.kind) == (kind == "json"), now.type
        assert is_verbatim(now.kind) == (kind in MAY_NEST or now.kind.domain), now.type
        assert is_verbatim(before.kind) or not is_verbatim(now.kind), now.type


def test_images_are_one_line_of_valid_json(shelf: Shelf) -> None:
    texts = [row[side] for row in shelf.changes for side in ("key", "before", "after") if row[side] is not None]
    assert len(texts) > 5 * len(VALUES)
    for text in texts:
        assert isinstance(json.loads(text, parse_constant=pytest.fail), dict)
        assert not set("\n\r") & set(text)


def test_every_type_of_the_server_is_in_the_table(shelf: Shelf) -> None:
    """Built-in types and the tests' own: a major version that brings a new type must bring it into the table."""
    known = (
        "SELECT oid::regtype::text FROM pg_type WHERE typarray <> 0 AND typcategory <> 'A' AND typtype <> 'p' "
        "AND typrelid NOT IN (SELECT oid FROM pg_class WHERE relkind <> 'c') "
        "AND typnamespace <> 'information_schema'::regnamespace "
        "AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_type.oid AND deptype = 'e')"
    )
    used = "SELECT atttypid::regtype::text FROM pg_attribute WHERE attnum > 0 AND attrelid::regclass::text = ANY(%s)"
    columns = {name for (name,) in shelf.rows(used, list(VALUES))}
    missing = {name for (name,) in shelf.rows(known)} - columns - UNSTORABLE
    assert missing == ({"xml"} if "xml" not in OFFERS[shelf.server.major] else set())


def test_what_the_servers_offer_is_known(shelf: Shelf) -> None:
    """Which of what the cases need each server has; what no server has would not be tested at all."""
    needs = {case.needs for cases in VALUES.values() for case in cases} - {""}
    available = {name for (name,) in shelf.rows("SELECT name FROM pg_available_extensions")}
    xml = {"xml"} if _takes_xml(shelf) else set()
    assert (available | xml) & needs == OFFERS[shelf.server.major]
    assert set().union(*OFFERS.values()) == needs


def split(image: str) -> dict[str, str]:
    """A JSON object's members as they are written."""
    decoder, found, at = json.JSONDecoder(), {}, 1
    while image[at - 1] != "}":
        name, at = decoder.raw_decode(image, at)
        _, end = decoder.raw_decode(image, _after_blanks(image, at + 1))
        end = _after_blanks(image, end)
        found[name], at = image[at + 1 : end], end + 1
    return found


def _after_blanks(text: str, at: int) -> int:
    while text[at] in " \t":
        at += 1
    return at


def _columns(db: Database, group: str) -> list[Value]:
    return values(group, db.server.major)


def _snapshot_version(db: Database, table: str) -> TableSchema:
    with tempfile.TemporaryDirectory() as folder:
        chunk = ChunkId("run", "public", table, 0)
        db.source().read_chunk(chunk, Extent(filter="id = 1"), FilePath(folder))
        [staged] = left_behind(FilePath(folder))
    return staged.schema


def _without_kind(column: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in column.items() if name != "kind"}


def _takes_xml(db: Database) -> bool:
    try:
        return bool(db.value("SELECT '<a/>'::xml IS NOT NULL"))
    except psycopg.errors.FeatureNotSupported:
        return False
