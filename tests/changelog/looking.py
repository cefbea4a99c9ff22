"""How the tests look at a log: as rows, as offsets, as files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from tailrace.changelog import Limits, LogReader, read_slice

Change = dict[str, Any]


def changes(path: Path, start: int | None = None, end: int | None = None, tasks: int = 1) -> list[Change]:
    """The changes of a range in the order the slices give them."""
    reader = LogReader(path)
    first = reader.earliest if start is None else start
    last = reader.end if end is None else end
    pieces = reader.slices(first, last, tasks)
    return [row for piece in pieces for batch in read_slice(piece) for row in batch.to_pylist()]


def seqs(rows: list[Change]) -> list[int]:
    return [row["seq"] for row in rows]


def values(rows: list[Change]) -> list[str | None]:
    return [row["after"] for row in rows]


def cuts(reader: LogReader, limits: Limits, start: int | None = None) -> list[int]:
    """Every batch end from `start` to the reader's end; fails where a cut does not progress."""
    ends = [reader.earliest if start is None else start]
    while ends[-1] < reader.end:
        end = reader.cut(ends[-1], limits)
        assert end > ends[-1], "no progress"
        ends.append(end)
    return ends


def sizes(ends: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(ends)]


def transaction_ends(rows: list[Change]) -> set[int]:
    return {row["seq"] + 1 for row in rows if row["tx_last"]}


def newest(folder: Path) -> Path:
    return max(file for file in folder.iterdir() if not file.name.startswith("."))
