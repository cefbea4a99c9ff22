"""The largest things PostgreSQL can hold: as many columns as a table can have, values of a hundred megabytes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

import pytest

from tests.capture.running import Capturing, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

COLUMNS = 1600
"""PostgreSQL's limit."""
LARGE = 100 << 20


@pytest.mark.parametrize("major", [15, 16, 18])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_as_many_columns_as_a_table_can_have(database: Fresh, capturing: Start, major: int, identity: str) -> None:
    db = database(major)
    names = [f'"column {number:04} é"' for number in range(COLUMNS)]
    listed = ", ".join(f"{name} int" for name in names)
    db.run(f"CREATE TABLE t ({listed}, PRIMARY KEY ({names[0]}))", f"ALTER TABLE t REPLICA IDENTITY {identity}")
    run = capturing(db)
    db.run(f"INSERT INTO t VALUES ({', '.join(map(str, range(COLUMNS)))})")
    db.run(f"UPDATE t SET {names[-1]} = NULL", f"UPDATE t SET {names[0]} = -1", "DELETE FROM t")
    created, updated, moved_from, moved_to, deleted = run.changes()
    row = {name.strip('"'): number for number, name in enumerate(names)}
    first, last = (name.strip('"') for name in (names[0], names[-1]))
    changed, moved = {**row, last: None}, {**row, last: None, first: -1}
    assert [json.loads(each["after"]) for each in (created, updated, moved_to)] == [row, changed, moved]
    before = (row, changed, moved) if identity == "FULL" else (None, {first: 0}, {first: -1})
    assert tuple(each["before"] and json.loads(each["before"]) for each in (updated, moved_from, deleted)) == before


@pytest.mark.parametrize(
    ("kind", "value", "digest"),
    [
        ("text", f"repeat('0123456789abcde\n', {LARGE >> 4})", lambda v: _md5(v.encode())),
        ("bytea", f"convert_to(repeat('0123456789abcdef', {LARGE >> 4}), 'UTF8')", lambda v: _md5(base64.b64decode(v))),
        ("text[]", f"array_fill('a \"quoted\" word'::text, ARRAY[{LARGE >> 4}])", lambda v: _md5("".join(v).encode())),
        (
            "json",
            f"""('{{"k": "' || repeat('é😀0123456789', {LARGE >> 4}) || '"}}')::json""",
            lambda v: _md5(v["k"].encode()),
        ),
    ],
    ids=["text", "bytea", "array", "json"],
)
def test_a_value_of_a_hundred_megabytes(
    db: Database, capturing: Start, kind: str, value: str, digest: Callable[..., str]
) -> None:
    """It travels whole, between small rows of its transaction; the tap's memory goes back to its bound."""
    db.run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, n int)")
    run = capturing(db)
    bound = len(run.stream._rows.arena)
    db.run(
        f"BEGIN; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2, {value}); INSERT INTO t VALUES (3); COMMIT",
        "UPDATE t SET n = 1 WHERE id = 2",
    )
    small, large, third, updated = run.changes()
    plain = {"text": "convert_to(v, 'UTF8')", "bytea": "v", "text[]": "convert_to(array_to_string(v, ''), 'UTF8')"}
    text = plain.get(kind, "convert_to(v->>'k', 'UTF8')")
    assert digest(json.loads(large["after"])["v"]) == db.value(f"SELECT md5({text}) FROM t WHERE id = 2")
    assert [json.loads(row["after"])["v"] for row in (small, third)] == [None, None]
    assert (updated["after"], updated["unchanged"]) == ('{"id":2,"n":1}', ["v"])
    assert len({row["tx_id"] for row in (small, large, third)}) == 1
    assert len(run.stream._rows.arena) == bound


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
