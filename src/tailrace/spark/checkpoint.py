"""Reading a query's checkpoint: Spark's own record of which offsets each batch spans.

Spark writes `offsets/<batch>` before it runs a batch and `commits/<batch>` after. Each is a version line
followed by lines of JSON; the source's offset is the last line of an `offsets` file.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tailrace.contracts import Span


@dataclass(frozen=True)
class Mark:
    """An offset of a log as the source reports it to Spark."""

    log: str
    offset: int

    def as_dict(self) -> dict[str, object]:
        return {"log": self.log, "offset": self.offset}


class Checkpoint:
    """The checkpoint directory of one query. `initial` is where batch 0 begins; Spark does not record
    that."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self) -> Mark | None:
        """Where the newest planned batch ends, committed or not; None for a fresh checkpoint."""
        batches = self._batches("offsets")
        return self._end(batches[-1]) if batches else None

    def committed(self, initial: int) -> int:
        """Where the newest committed batch ends."""
        batches = self._batches("commits")
        return self._end(batches[-1]).offset if batches else initial

    def span(self, batch: int, initial: int) -> Span:
        """What `batch` covers. Equal every time it is run."""
        end = self._end(batch)
        start = self._end(batch - 1).offset if batch > 0 else initial
        return Span(end.log, start, end.offset, began=initial)

    def cut_torn_tail(self) -> None:
        """Remove what a power failure left half-written, so that the batch is planned or run again."""
        for folder in ("offsets", "commits"):
            for batch in reversed(self._batches(folder)):
                if _is_whole(self.path / folder / str(batch)):
                    break
                self._remove(folder, batch)
        planned = self._batches("offsets")
        for batch in self._batches("commits"):
            if not planned or batch > planned[-1]:
                self._remove("commits", batch)
        metadata = self.path / "metadata"
        if metadata.exists() and not _is_json(metadata.read_text()):
            metadata.unlink()

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _end(self, batch: int) -> Mark:
        line = (self.path / "offsets" / str(batch)).read_text().splitlines()[-1]
        return Mark(**json.loads(line))

    def _batches(self, folder: str) -> list[int]:
        directory = self.path / folder
        if not directory.is_dir():
            return []
        return sorted(int(file.name) for file in directory.iterdir() if file.name.isdigit())

    def _remove(self, folder: str, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (self.path / folder / name).unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    lines = file.read_text(errors="replace").splitlines()
    return len(lines) > 1 and lines[0].startswith("v") and _is_json(lines[-1])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
