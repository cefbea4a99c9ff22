"""Spark's checkpoint as we read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.contracts import Span
from tailrace.spark.checkpoint import Checkpoint, Mark


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Batches 3 and 4 are planned, 3 is committed; older ones were purged."""
    for batch, offset in ((3, 30), (4, 44)):
        write(tmp_path / "offsets" / str(batch), 'v1\n{"batchWatermarkMs":0}\n' + offset_text(offset))
    write(tmp_path / "commits" / "3", 'v1\n{"nextBatchWatermarkMs":0}')
    write(tmp_path / "metadata", '{"id":"5a1c"}')
    return Checkpoint(tmp_path)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def offset_text(offset: int) -> str:
    return json.dumps({"log": "a1", "offset": offset})


def test_a_batch_spans_from_the_end_of_the_one_before(checkpoint: Checkpoint) -> None:
    assert checkpoint.span(4, initial=7) == Span("a1", 30, 44)
    assert checkpoint.newest() == Mark("a1", 44)
    assert checkpoint.committed(initial=7) == 30


def test_the_first_batch_begins_at_the_initial_offset(tmp_path: Path) -> None:
    write(tmp_path / "offsets" / "0", "v1\n{}\n" + offset_text(9))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.span(0, initial=7) == Span("a1", 7, 9)
    assert checkpoint.committed(initial=7) == 7


def test_a_fresh_checkpoint_has_no_newest(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "none").newest() is None


@pytest.mark.parametrize("torn", ["", "v1", 'v1\n{"batchWatermarkMs":0}\n{"log":"a'])
def test_a_torn_plan_is_forgotten(checkpoint: Checkpoint, torn: str) -> None:
    (checkpoint.path / "offsets" / "4").write_text(torn)
    checkpoint.cut_torn_tail()
    assert checkpoint.newest() == Mark("a1", 30)
    assert checkpoint.committed(initial=7) == 30


def test_a_torn_commit_is_run_again(checkpoint: Checkpoint) -> None:
    write(checkpoint.path / "commits" / "4", "")
    checkpoint.cut_torn_tail()
    assert checkpoint.committed(initial=7) == 30
    assert checkpoint.newest() == Mark("a1", 44)


def test_a_commit_without_its_plan_is_forgotten(checkpoint: Checkpoint) -> None:
    (checkpoint.path / "offsets" / "4").write_text("")
    write(checkpoint.path / "commits" / "4", 'v1\n{"nextBatchWatermarkMs":0}')
    checkpoint.cut_torn_tail()
    assert checkpoint.committed(initial=7) == 30


def test_torn_metadata_is_made_anew(checkpoint: Checkpoint) -> None:
    (checkpoint.path / "metadata").write_text("")
    checkpoint.cut_torn_tail()
    assert not (checkpoint.path / "metadata").exists()


def test_a_whole_checkpoint_is_left_alone(checkpoint: Checkpoint) -> None:
    before = sorted(str(file) for file in checkpoint.path.rglob("*"))
    checkpoint.cut_torn_tail()
    assert sorted(str(file) for file in checkpoint.path.rglob("*")) == before
