"""Staged files after a crash: whole ones say what they are, drafts go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.capture.staging import StagedFile, left_behind, read_staged, remove_others
from tailrace.contracts import ChunkId, Staged
from tailrace.kinds import Kind
from tailrace.schema import Column, TableSchema


def staged(path: Path, schema: TableSchema) -> Staged:
    return Staged(
        ChunkId("run", "public", "t", 3), str(path), 0, 0, "0/1", "0/2", "1:2:", schema, 7, False, ('{"a":1}',)
    )


def test_what_a_crash_leaves_behind(tmp_path: Path) -> None:
    schema = TableSchema(1, "db", "public", "t", (Column("id", "price", kind=Kind.parse("domain<decimal(9,2)>")),), ())
    whole = staged(tmp_path / "whole.arrow", schema)
    with StagedFile(tmp_path / "whole.arrow") as file:
        file.describe(whole)
    (tmp_path / ".draft.arrow").touch()
    assert repr(list(left_behind(tmp_path))) == repr([whole])
    assert list(read_staged(tmp_path / "whole.arrow")) == []
    remove_others(tmp_path, {whole.file})
    assert [path.name for path in tmp_path.iterdir()] == ["whole.arrow"]


def test_a_read_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), StagedFile(tmp_path / "half.arrow"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
