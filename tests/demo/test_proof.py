"""Folding a table's files: the last word on each key, with what was not sent kept from before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.demo import Outcome
from tailrace.demo.place import MARKER, claim
from tailrace.demo.proof import Row, TableProof, changes, fold
from tailrace.errors import SetupError
from tailrace.json_members import split
from tailrace.supervisor.status import Status
from tailrace.supervisor.verify.report import TableReport

KEY = ("id",)


def record(op: str, before: Any = None, after: Any = None, **more: Any) -> Row:
    whole = {"before": before, "after": after, "op": op, **more}
    return split(json.dumps(whole, separators=(",", ":")))


def folded(*records: Row) -> list[dict[str, Any]]:
    rows = fold(records, KEY).values()
    return [{name: json.loads(text) for name, text in row.items()} for row in rows]


def test_the_last_change_of_a_key_decides() -> None:
    assert folded(
        record("c", after={"id": 1, "v": "a"}),
        record("c", after={"id": 2, "v": "b"}),
        record("u", after={"id": 1, "v": "c"}),
        record("d", before={"id": 2}),
    ) == [{"id": 1, "v": "c"}]


def test_a_truncate_removes_all() -> None:
    rows = folded(record("c", after={"id": 1}), record("t"), record("c", after={"id": 3}))
    assert rows == [{"id": 3}]


def test_what_was_not_sent_is_what_was_there() -> None:
    assert folded(
        record("c", after={"id": 1, "v": "a", "big": "…"}),
        record("u", after={"id": 1, "v": "b"}, unchanged=["big"]),
    ) == [{"id": 1, "v": "b", "big": "…"}]


def test_a_changed_key_takes_what_was_not_sent_along() -> None:
    assert folded(
        record("c", after={"id": 1, "big": "…"}),
        record("d", before={"id": 1}, headers={"new_key": '{"id":2}'}),
        record("c", after={"id": 2}, unchanged=["big"], headers={"old_key": '{"id":1}'}),
    ) == [{"id": 2, "big": "…"}]


def test_files_are_read_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    for day, name, number in (
        ("2026-01-02", "1-2-0", 2),
        ("2026-01-01", "0-1-0", 1),
        ("2026-01-01", "2-3-0", 3),
    ):
        (tmp_path / day).mkdir(exist_ok=True)
        (tmp_path / day / f"{name}.jsonl").write_text(f'{{"n":{number}}}\n')
    assert [row["n"] for row in changes(tmp_path)] == ["1", "2", "3"]


def test_files_and_lake_must_both_be_equal() -> None:
    status = Status(0, 0)
    equal, files = TableProof("orders", 5, 9, 0), TableProof("orders", 5, 9, 2)
    for lake, told in (
        (TableReport("lake", "public.orders", 5), ()),
        (TableReport("lake", "public.orders", 5, {"missing": 3}), ("the Delta table of public.orders: 3 rows differ",)),
        (TableReport("lake", "public.orders", problem="it halted"), ("the Delta table of public.orders: it halted",)),
    ):
        assert Outcome(status, (equal,), (lake,)).unequal == told
    assert Outcome(status, (files,)).unequal == ("the files of orders differ in 2 rows",)


def test_a_directory_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(SetupError, match="not a demo's directory") as caught, claim(tmp_path, keep=False):
        pass
    assert caught.value.code == "demo.directory_taken"
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


def test_a_directory_belongs_to_one_demo_at_a_time(tmp_path: Path) -> None:
    with claim(tmp_path, keep=False) as place:
        (place.root / "old").write_text("x")
        with pytest.raises(SetupError) as caught, claim(tmp_path, keep=False):
            pass
        assert caught.value.code == "demo.running"
    with claim(tmp_path, keep=True):
        assert (tmp_path / "old").exists()
    with claim(tmp_path, keep=False):
        assert [file.name for file in tmp_path.iterdir()] == [MARKER]
