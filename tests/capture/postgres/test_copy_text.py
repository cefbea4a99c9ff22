"""COPY's lines become what inserts of the same rows become, whatever the size of the buffers."""

from __future__ import annotations

import os
import random

import pytest

from tailrace.capture.postgres import messages
from tailrace.capture.postgres import rows as rows_module
from tailrace.capture.postgres.buffers import Stop
from tailrace.capture.postgres.relations import Relations
from tailrace.capture.postgres.rows import DecodedRows
from tailrace.change import OPS
from tailrace.contracts import Frame
from tailrace.schema import SchemaBook
from tests.capture.postgres import wire
from tests.capture.postgres.script import PRIMARY_KEYS, TYPES, FixedCatalog, expected
from tests.capture.postgres.wire import Value

OID = 7
COLUMNS = [("id", 20, True), *((f"c{kind}", kind, False) for kind in TYPES), ("last", 25, False)]
RELATION = wire.relation(OID, "public", "t", "d", COLUMNS)
ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
BIG = 1 << 20
SEEDS = range(2 if os.environ.get("NUMBA_BOUNDSCHECK") == "1" else 6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arena", [64, 4_000, BIG])
def test_lines_are_inserts(seed: int, arena: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if arena != BIG:
        monkeypatch.setattr(rows_module, "MAX_ROWS", 8)
    chance = random.Random(seed)
    inserted = [_values(chance) for _ in range(60)]
    found = _rows_of(_decoded([_line(each) for each in inserted], arena))
    assert found == _expected(inserted)


@pytest.mark.parametrize("value", [b"\\N", b"N", b"\\", b"\\.", b"\t", b"\n", b"a\\Nb", b"", b"x" * 5000, b"\\" * 5000])
def test_a_value_that_looks_like_something_else(value: bytes) -> None:
    """Eight bytes are looked at together: the value stands at every place among them."""
    inserted: list[list[Value]] = [[str(n).encode(), *[None] * len(TYPES), b"-" * n + value] for n in range(9)]
    assert _rows_of(_decoded([_line(each) for each in inserted], BIG)) == _expected(inserted)


def test_the_last_line_ends_with_the_buffer() -> None:
    """However short it is."""
    for size in range(20):
        inserted: list[list[Value]] = [[b"1", *[None] * len(TYPES), b"z" * size]]
        assert _rows_of(_decoded([_line(each) for each in inserted], BIG)) == _expected(inserted)


def _values(chance: random.Random) -> list[Value]:
    makers = [TYPES[kind][1] for _, kind, _ in COLUMNS]
    made: list[Value] = [make(chance).encode() if chance.random() < 0.8 else None for make in makers]
    return [str(chance.randint(1, 10 ** chance.randint(1, 18))).encode(), *made[1:]]


def _line(values: list[Value]) -> bytes:
    return b"\t".join(b"\\N" if value is None else _escaped(value) for value in values) + b"\n"


def _escaped(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return "".join(ESCAPES.get(each, each) for each in value.decode()).encode()


def _decoded(lines: list[bytes], arena: int) -> list[Frame]:
    relations = _relations()
    rows, frames = DecodedRows(arena), []
    rows.begin(0, 0)
    data, place = bytearray(b"".join(lines)), 0
    while True:
        stop, place = rows.decode_copy(data, place, relations)
        if stop is Stop.END:
            break
        assert stop is Stop.FULL
        if rows.count:
            frames.append(rows.take_open()[0])
        else:
            rows.grow()
    rows.commit(0)
    return [frame for frame in (*frames, rows.take_finished()[0]) if frame is not None]


def _relations() -> Relations:
    PRIMARY_KEYS[OID] = ("id",)
    relations = Relations("db", SchemaBook(), FixedCatalog(), lambda schema, table: True)
    relations.announce(messages.relation(RELATION))
    return relations


def _rows_of(frames: list[Frame]) -> list[tuple[str, str, str]]:
    found = []
    for frame in frames:
        frame.rows.validate(full=True)
        for row in sorted(frame.rows.to_pylist(), key=lambda row: row["row"]):
            assert (OPS[row["op"]], row["before"], row["unchanged"], row["headers"]) == ("r", None, None, None)
            found.append((row["key"], row["after"], row["ordinal"]))
    return found


def _expected(inserted: list[list[Value]]) -> list[tuple[str, str, str]]:
    changes = [wire.insert(OID, values) for values in inserted]
    PRIMARY_KEYS[OID] = ("id",)
    rows = expected([wire.begin(1, 0, 1), RELATION, *changes, wire.commit(1, 2, 0)])
    return [(row["key"], row["after"], row["ordinal"]) for row in rows]
