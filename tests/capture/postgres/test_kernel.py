"""The compiled decoder agrees with the reference on every message kind, whatever the size of its buffers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailrace.capture.postgres import copy_text, json_text, kernel, lanes, row_text
from tailrace.capture.postgres import rows as rows_module
from tailrace.capture.postgres.lanes import lane_of
from tailrace.change import LANES
from tailrace.changelog import LogReader, LogWriter, read_slice
from tests.capture.postgres import wire
from tests.capture.postgres.script import PRIMARY_KEYS, Script, decoded, expected, offline, rows_of
from tests.capture.postgres.wire import SAME
from tests.compiled import digests

BOUNDS = os.environ.get("NUMBA_BOUNDSCHECK") == "1"
SEEDS = range(3 if BOUNDS else 12)
BIG = 1 << 20


@pytest.mark.parametrize("seed", SEEDS)
def test_random_streams(seed: int) -> None:
    script = Script(random.Random(seed))
    for _ in range(25):
        script.transaction(script.chance.choice([0, 1, 3, 60]))
    captures = decoded(offline(BIG), script.messages, script.chance.choice([1, 7, 1000]))
    _assert_equal(rows_of(captures), expected(script.messages))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arena", [64, 4_000, 40_000])
def test_random_streams_through_tiny_buffers(seed: int, arena: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena is too small for some rows (it grows), for most transactions (they spill); so are the row arrays."""
    monkeypatch.setattr(rows_module, "MAX_ROWS", 2 if arena == 64 else 8)
    script = Script(random.Random(seed))
    for _ in range(12):
        script.transaction(script.chance.choice([0, 1, 3, 30]))
    stream = offline(arena)
    captures = decoded(stream, script.messages, 50)
    _assert_equal(rows_of(captures), expected(script.messages))
    assert any(capture.resume is None for capture in captures)
    assert len(stream._rows.arena) == arena


def test_a_transaction_that_ends_right_after_its_last_part_ends_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROWS", 4)
    head = [wire.relation(1, "public", "t", "d", [("id", 20, True)])]
    first = [wire.begin(10, 0, 1), *head, *(wire.insert(1, [b"%d" % n]) for n in range(3))]
    logical = wire.message("big", b"x" * 5000, 12)
    second = [wire.begin(20, 0, 2), wire.insert(1, [b"9"]), wire.commit(20, 21, 0)]
    stream = offline(4096)
    captures = decoded(stream, [*first, logical, wire.commit(10, 11, 0), *second], 100)
    with closing(LogWriter(tmp_path, "s")) as log:
        for capture in captures:
            log.append(capture)
    log_reader = LogReader(tmp_path)
    [piece] = log_reader.slices(0, log_reader.end, 1)
    rows = [row for batch in read_slice(piece) for row in batch.to_pylist()]
    assert [(row["tx_id"], row["tx_last"]) for row in rows] == [
        ("1", False),
        ("1", False),
        ("1", False),
        ("1", True),
        ("2", True),
    ]


def test_a_spilled_transaction_without_a_rest_is_handed_over_at_its_end() -> None:
    stream = offline(BIG)
    head = [wire.begin(10, 0, 1), wire.relation(1, "public", "t", "d", [("id", 20, True)]), wire.insert(1, [b"1"])]
    list(stream._decode(*wire.copy_data(head)))
    [part] = stream._make_room()
    [end] = decoded(stream, [wire.commit(10, 11, 0)], 1)
    assert part.resume is None
    assert end.frame is None
    assert end.resume is not None
    assert end.resume["lsn"] == "0/B"
    assert stream._rows.empty


@pytest.mark.parametrize(
    ("value", "name"),
    [("\x01" * 2000, "control characters"), ('"' * 9000, "quotes"), ("\\" * 9000, "backslashes"), ("é" * 4000, "é")],
)
def test_a_key_that_moves_and_keeps_a_large_column_has_room(value: str, name: str) -> None:
    """The unchanged key column comes from the old tuple into both rows' keys, images and headers."""
    big = value.encode()
    columns = [("a", 20, True), ("b", 25, True), ("c", 25, False)]
    messages = [
        wire.begin(10, 0, 1),
        wire.relation(1, "public", "t", "d", columns),
        wire.update(1, [b"2", SAME, b"x"], [b"1", big, None], "K"),
        wire.commit(10, 11, 0),
    ]
    deleted, created = rows_of(decoded(offline(64), messages, 10))
    assert json.loads(deleted["key"]) == {"a": 1, "b": value}
    assert json.loads(created["after"]) == {"a": 2, "b": value, "c": "x"}
    assert json.loads(deleted["headers"]["new_key"]) == {"a": 2, "b": value}
    assert json.loads(created["headers"]["old_key"]) == {"a": 1, "b": value}


def test_a_value_far_beyond_the_arena() -> None:
    huge = ("x\n" * 3_000_000).encode()
    messages = [
        wire.begin(10, 0, 1),
        wire.relation(1, "public", "t", "d", [("id", 20, True), ("v", 25, False)]),
        wire.insert(1, [b"1", b"small"]),
        wire.insert(1, [b"2", huge]),
        wire.insert(1, [b"3", b"small"]),
        wire.commit(10, 11, 0),
    ]
    stream = offline(10_000)
    rows = rows_of(decoded(stream, messages, 100))
    assert [json.loads(row["after"])["v"] for row in rows] == ["small", huge.decode(), "small"]
    assert len(stream._rows.arena) == 10_000


def test_many_empty_transactions_fill_the_table_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROWS", 8)
    quiet = [m for n in range(50) for m in (wire.begin(n + 1, 0, n + 1), wire.commit(n + 1, n + 2, 0))]
    loud = [wire.message("note", b"hi", lsn, transactional=False) for lsn in range(100, 150)]
    captures = decoded(offline(BIG), [*quiet, *loud], 7)
    assert [row["lsn"] for row in rows_of(captures)] == list(range(100, 150))


def test_a_row_of_an_unknown_relation_is_refused() -> None:
    with pytest.raises(Exception, match="never described"):
        decoded(offline(BIG), [wire.begin(1, 0, 1), wire.insert(77, [b"1"])], 10)


def test_a_table_nobody_wants_is_skipped() -> None:
    stream = offline(BIG)
    stream._relations._wanted = lambda schema, table: table != "private"
    columns = [("id", 20, True)]
    messages = [
        wire.begin(10, 0, 1),
        wire.relation(1, "public", "private", "d", columns),
        wire.relation(2, "public", "open", "d", columns),
        wire.insert(1, [b"1"]),
        wire.insert(2, [b"2"]),
        wire.truncate([1, 2]),
        wire.commit(10, 11, 0),
    ]
    rows = rows_of(decoded(stream, messages, 100))
    assert [(row["op"], row["table"], row["ordinal"]) for row in rows] == [("c", "open", 0), ("t", "open", 1)]


def test_a_table_altered_in_a_transaction_has_two_versions() -> None:
    messages = [
        wire.begin(10, 0, 1),
        wire.relation(1, "public", "t", "d", [("id", 20, True)]),
        wire.insert(1, [b"1"]),
        wire.relation(1, "public", "t", "d", [("id", 20, True), ("v", 25, False)]),
        wire.insert(1, [b"2", b"x"]),
        wire.commit(10, 11, 0),
    ]
    [capture] = decoded(offline(BIG), messages, 100)
    assert [schema.id for schema in capture.schemas] == [0, 1]
    first, change, second = rows_of([capture])
    assert (first["after"], second["after"]) == ('{"id":1}', '{"id":2,"v":"x"}')
    assert (change["op"], change["ordinal"], second["ordinal"]) == ("s", 1, 2)
    assert json.loads(change["after"])["changes"] == [{"kind": "add", "column": "v", "type": "text"}]


def test_full_identity_without_a_primary_key_has_no_key() -> None:
    PRIMARY_KEYS[1] = ()
    columns = [("a", 20, True), ("b", 25, True)]
    messages = [
        wire.begin(10, 0, 1),
        wire.relation(1, "public", "t", "f", columns),
        wire.update(1, [b"2", SAME], [b"1", b"x"], "O"),
        wire.delete(1, [b"2", None], "O"),
        wire.commit(10, 11, 0),
    ]
    updated, deleted = rows_of(decoded(offline(BIG), messages, 100))
    assert (updated["op"], updated["key"], updated["before"], updated["after"], updated["unchanged"]) == (
        "u",
        None,
        '{"a":1,"b":"x"}',
        '{"a":2,"b":"x"}',
        None,
    )
    assert (deleted["key"], deleted["before"], deleted["after"]) == (None, '{"a":2,"b":null}', None)


def test_lanes_are_part_of_the_format() -> None:
    """A log's rows keep their lanes for ever: FNV-1a of the key on the table's seed."""
    import numpy as np

    for key in ('{"id":1}', '{"id":2}', "", '{"id":"é"}'):
        text = np.frombuffer(key.encode() or b" ", dtype=np.uint8)
        assert lane_of(7, text, 0, len(key.encode())) == _lane(7, key.encode())


@pytest.mark.parametrize("module", [json_text, lanes, row_text, copy_text, kernel])
def test_the_cached_decoder_has_the_functions_of_today(module: ModuleType) -> None:
    """A change in a compiled file is a change in all that are built on it."""
    found = digests(module)
    assert found == module.INLINED, f"write INLINED = {found} into {module.__name__}"


@pytest.mark.timeout(600)  # it compiles the decoder anew
@pytest.mark.skipif(BOUNDS, reason="this is the run it starts")
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    """The same tests with every index checked: unchecked, one too large is a crash of the process, or worse."""
    here = Path(__file__)
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += [str(here), *(str(here.with_name(f"test_{name}.py")) for name in ("json_text", "copy_text"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def _lane(seed: int, key: bytes) -> int:
    mask = 2**64 - 1
    value = seed
    for byte in key:
        value = (value ^ byte) * 1099511628211 & mask
    for shift in (32, 16, 8):
        value ^= value >> shift
    return value & (LANES - 1)


def _assert_equal(rows: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(rows, reference, strict=False):
        assert ours == theirs
    assert len(rows) == len(reference)
