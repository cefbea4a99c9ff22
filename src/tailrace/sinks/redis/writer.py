"""The task's half of the sink: Arrow batches to calls of a script, many on their way at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tailrace.config import MIB
from tailrace.contracts import Rejected, Written
from tailrace.errors import SinkError
from tailrace.sinks.pieces import Numbers, pieces, whole_changes
from tailrace.sinks.redis.address import Access
from tailrace.sinks.redis.connection import Call, Servers, connected
from tailrace.sinks.redis.scripts import Script

_PIECE_ROWS, _PIECE_BYTES = 512, MIB
_WINDOW_ROWS, _WINDOW_BYTES = 4096, 8 * MIB


@dataclass(frozen=True)
class Group:
    """Rows that share a mark: those of one stream, or of keys that one script may write."""

    mark: str
    rows: Numbers


class Content(Protocol):
    """What a window of rows becomes in the server."""

    script: Script

    def refused(self) -> dict[int, SinkError]:
        """The rows that cannot be sent, and why."""
        ...

    def groups(self, rows: Numbers) -> Iterator[Group]: ...

    def sizes(self) -> Numbers:
        """Bytes of each row."""
        ...

    def late(self, refused: Numbers, names: set[str]) -> Numbers:
        """Which rows to write although their mark is beyond them, where an earlier attempt refused those that `refused`
        tells. `names` is kept from window to window."""
        ...

    def call(self, group: Group, rows: Numbers, late: Numbers, mark: int, end: int) -> Call:
        """The call that writes these rows, builds on `mark` and leaves `end`."""
        ...


class Form(Protocol):
    """What a sink makes of changes."""

    def content(self, batch: pa.RecordBatch, largest: int, cluster: bool) -> Content: ...


@dataclass
class RedisWriter:
    """Sends windows of rows, each as many calls at once; a window is answered before the next one goes. Calls that
    share a mark are a chain: each names the mark that the one before it leaves.

    Marks pass rows that are refused. Those are in the set `refused` until the batch is committed, so that a later
    attempt, which may be able to write them, knows that nobody did. With `letters` all rows are dead letters that are
    delivered again: they move no mark."""

    sink: str
    access: Access
    form: Form
    refused: str
    patience: float
    letters: bool = False
    _marks: dict[str, int] = field(default_factory=dict)
    _calls_sent: int = 0
    _refused_before: frozenset[str] | None = None
    _late_names: set[str] = field(default_factory=set)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rejected: list[Rejected] = []
        deadline = time.monotonic() + self.patience
        for batch in whole_changes(batches):
            for window in _windows(batch):
                if self._calls_sent and time.monotonic() > deadline:
                    raise self._late()
                with connected(self.access, self.sink) as servers:
                    rejected += self._send(servers, window)
        return Written(rejected=tuple(rejected))

    def _send(self, servers: Servers, window: pa.RecordBatch) -> list[Rejected]:
        content = self.form.content(window, servers.largest, self.access.cluster)
        errors = content.refused()
        ids: list[Any] = window.column("event_id").to_pylist()
        before = frozenset(ids) if self.letters else self._refuse(servers, [ids[row] for row in errors])
        late = content.late(np.array([each in before for each in ids], dtype=bool), self._late_names)
        rows = np.delete(np.arange(window.num_rows), list(errors))
        groups = list(content.groups(rows))
        self._learn(servers, groups)
        calls = [call for group in groups for call in self._calls(content, group, window, late)]
        servers.run(content.script, calls)
        self._calls_sent += len(calls)
        return [Rejected(window.slice(row, 1), error) for row, error in errors.items()]

    def _refuse(self, servers: Servers, ids: list[str]) -> frozenset[str]:
        """Remember rows that are refused, before any mark passes them. Returns those of earlier attempts."""
        if self._refused_before is None:
            self._refused_before = frozenset(servers.members(self.refused))
        if ids:
            servers.add(self.refused, ids)
        return self._refused_before

    def _learn(self, servers: Servers, groups: list[Group]) -> None:
        """The marks of streams that are new to this writer: what is below them need not even travel."""
        new = [group.mark for group in groups if group.mark not in self._marks]
        self._marks.update(zip(new, servers.numbers(new), strict=True))

    def _calls(self, content: Content, group: Group, window: pa.RecordBatch, late: Numbers) -> Iterator[Call]:
        offsets, sizes = window.column("seq").to_numpy(), content.sizes()
        rows = group.rows[(offsets[group.rows] >= self._marks[group.mark]) | late[group.rows]]
        for first, last in pieces(offsets[rows], sizes[rows], _PIECE_ROWS, _PIECE_BYTES):
            mark, mine = self._marks[group.mark], rows[first:last]
            end = mark if self.letters else max(mark, int(offsets[mine[-1]]) + 1)
            yield content.call(group, mine, late[mine], mark, end)
            self._marks[group.mark] = end

    def _late(self) -> SinkError:
        text = f"the batch took longer than `batch_timeout_secs`, {self.patience:g}"
        hint = "nothing is lost: the sink goes on from where it is. Raise `batch_timeout_secs` where that is usual"
        return SinkError("sink.unavailable", text, hint=hint, where=self.sink)


def place(batch: pa.RecordBatch, row: int) -> str:
    """`schema.table at position`, for errors."""
    names: Any = (batch.column(name)[row].as_py() for name in ("schema", "table", "position"))
    return "{}.{} at {}".format(*names)


def _windows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    even = np.full(batch.num_rows, batch.nbytes // max(batch.num_rows, 1))
    offsets = batch.column("seq").to_numpy()
    for first, last in pieces(offsets, even, _WINDOW_ROWS, _WINDOW_BYTES):
        yield batch.slice(first, last - first)
