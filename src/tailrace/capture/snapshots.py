"""Taking staged chunks of a snapshot into the log, in the middle of the stream, so that no version goes backwards.

A chunk is admitted at a point P once the log has passed everything its read saw. Rows whose key was changed, anywhere
in the log before P, by a transaction the read did not see, are older than what the log has: they are left out. Where
such a change left columns out as unchanged, the row's values are nowhere in the log: its key is owed, and read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.capture.staging import read_staged
from tailrace.change import LANES, OPS
from tailrace.changelog import LogWriter, admissions
from tailrace.changelog.touched import Touched
from tailrace.changelog.transactions import Found, TransactionIndex
from tailrace.contracts import ROWS, STILL_OPEN, TXS, Admitted, Capture, ChunkId, Extent, Frame, Need, Staged
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import LogError
from tailrace.failpoints import failpoint
from tailrace.schema import TableSchema

BUSY_POLL_S = 0.05
IDLE_POLL_S = 1.0
CLOCK_US = 60_000_000
"""A line appended this long before a run was requested may still concern it: clocks are set."""
_CREATE = OPS.index("c")


class Sight(Protocol):
    """What a read saw, in its source's own terms."""

    def missed(self, xid: int) -> bool: ...

    def may_miss(self, newest: np.ndarray) -> np.ndarray: ...


class Snapshotted(Protocol):
    """What admission asks of a source's configuration."""

    id: str

    def sight(self, seen: str) -> Sight: ...

    def is_past(self, position: str, other: str) -> bool: ...

    def position(self, resume: Mapping[str, str]) -> str: ...

    def is_home(self, origin: str, resume: Mapping[str, str]) -> bool:
        """Whether a chunk from the server `origin` may enter a log that resumes there."""
        ...


class Admissions:
    """The chunks of one source's snapshots, on their way into its log. Lives in the tap, the log's only writer."""

    def __init__(self, ledger: SnapshotLedger, source: Snapshotted, log: LogWriter) -> None:
        self._ledger, self._source, self._log = ledger, source, log
        self._index: tuple[int, TransactionIndex] | None = None
        self._looked: dict[tuple[str, str, str], int] = {}
        """Lines of the index that were looked through for moved keys, by run and table."""
        self._waiting: list[Staged] = []
        self._active = False
        self._next_poll = 0.0
        self._catch_up()

    def tick(self, settled: str, clock: Callable[[], float] = time.monotonic) -> bool:
        """Admit at most one chunk: the stream comes first. `settled`: the position the log has passed. Returns
        whether a snapshot is under way."""
        if not self._log.in_transaction:
            if clock() >= self._next_poll:
                self._poll()
                self._next_poll = clock() + (BUSY_POLL_S if self._active else IDLE_POLL_S)
            ready = next((each for each in self._waiting if self._is_due(each, settled)), None)
            if ready is not None:
                self._waiting.remove(ready)
                self._take(ready, settled)
        return self._active

    def _is_due(self, staged: Staged, settled: str) -> bool:
        """A chunk of another server is due at once, to be refused: its positions say nothing here."""
        return not self._is_home(staged) or self._source.is_past(settled, staged.after)

    def _is_home(self, staged: Staged) -> bool:
        return self._source.is_home(staged.origin, self._log.state().resume or {})

    def _poll(self) -> None:
        runs = self._ledger.runs(self._source.id, "active")
        self._active = bool(runs)
        self._waiting = self._ledger.staged(self._source.id) if runs else []
        if not runs:
            self._index = None
        elif self._index is None:  # before the first read, so that it knows what retention may take away
            self._indexed(runs[0].since)

    def _take(self, staged: Staged, settled: str) -> None:
        captures = self._attempt(staged, settled)
        if captures is None:
            self._ledger.discard(staged)
            failpoint("admission.discard.before_unlink")
        else:
            self._append(captures)
            failpoint("admission.before_unlink")
        Path(staged.file).unlink(missing_ok=True)

    def _append(self, captures: list[Capture]) -> None:
        """Into the log, which decides with its line; then into the ledger."""
        for capture in captures:
            if capture.admitted is not None:
                failpoint("admission.before_line")
            self._log.append(capture)
            if capture.admitted is not None:
                failpoint("admission.before_ledger")
                self._ledger.enter(self._source.id, self._log.log_id, self._log.end, capture.admitted)

    def _attempt(self, staged: Staged, settled: str) -> list[Capture] | None:
        """None where the chunk must be read again: its file is lost, or what decides about it."""
        try:
            return self._admit(staged, settled)
        except FileNotFoundError:
            return None
        except LogError as error:
            if error.code != "log.expired":
                raise
            return None

    def _catch_up(self) -> None:
        """Enter what the log decided and a crash kept from the ledger."""
        source, log_id = self._source.id, self._log.log_id
        for line in admissions(self._log.storage, self._ledger.indexed(source, log_id)):
            self._ledger.enter(source, log_id, line.end, line.admitted)
        self._ledger.enter(source, log_id, self._log.end, None)

    # -- the rule --------------------------------------------------------------------------------------------

    def _admit(self, staged: Staged, settled: str) -> list[Capture] | None:
        """The chunk as captures of one transaction; None where it must be read again: it is of another server, the
        table's version has changed since or all its rows were replaced, or the stream began after it, so that what it
        did not see may be nowhere."""
        index = self._indexed(self._ledger.run(staged.chunk.run).since)
        if not self._is_home(staged) or index.began is None:
            return None
        if not self._source.is_past(staged.since, self._source.position(index.began)):
            return None
        replaced = index.replaced.get((staged.chunk.schema, staged.chunk.table))
        if replaced is not None and not self._source.is_past(staged.since, replaced):
            return None
        known = self._log.book.newest(staged.chunk.schema, staged.chunk.table)
        if known is not None and staged.schema.follows(known):
            return None
        schema = self._log.book.enter(staged.schema)
        found = self._unseen(staged, index)
        if any(set(each.rows.column("schema_id").to_pylist()) != {schema.id} for each in found):
            return None
        touched = _touched(found)
        moved = set() if staged.reset else self._moved(staged, schema, index)
        owed = self._ledger.owed(staged.chunk.run, staged.chunk.schema, staged.chunk.table)
        frames = _Frames(schema.id, _transaction_id(staged.chunk), settled, staged.at_us)
        told: set[str] = set(staged.keys)
        for batch, lanes in read_staged(Path(staged.file)):
            rows, offsets = (batch, lanes) if staged.reset else _without(batch, lanes, touched)
            frames.add(rows, offsets)
            told |= (owed | moved).intersection(rows.column("key").to_pylist()) if owed or moved else set()
        if staged.reset:
            for each in found:  # what came meanwhile, once more: the reset takes it away
                frames.add(*_in_lanes(each))
        self._looked[_place(staged)] = index.size
        admitted = _account(staged, touched.owed, (moved | owed) & told, moved - told, frames.count)
        if not staged.reset and not staged.keys and self._ledger.planned_once(staged.chunk):
            admitted = replace(admitted, disjoint=True)
        return frames.captures(self._log.state().resume or {}, schema, admitted)

    def _unseen(self, staged: Staged, index: TransactionIndex) -> list[Found]:
        sight = self._source.sight(staged.seen)
        tables = self._log.book.ids(staged.chunk.schema, staged.chunk.table)
        return list(index.find(tables, sight.may_miss, sight.missed))

    def _indexed(self, since: int) -> TransactionIndex:
        if self._index is None or self._index[0] != since:
            self._index, self._looked = (since, TransactionIndex(self._log.storage, since)), {}
        self._index[1].refresh()
        return self._index[1]

    def _moved(self, staged: Staged, schema: TableSchema, index: TransactionIndex) -> set[str]:
        """Keys that rows moved to since the run began, with columns left out: the old key may be gone before its chunk
        is read, and the new one lie in a chunk that was read before. Where the table got another key since, all of it
        is read anew."""
        tables = self._log.book.ids_with_key(schema)
        began = self._ledger.run(staged.chunk.run).created_us - CLOCK_US
        found = index.since(tables, self._looked.get(_place(staged), 0), began)
        return {key for each in found for key in _moved_keys(each)}


def _account(staged: Staged, unseen: set[str], paid: set[str], moved: set[str], rows: int) -> Admitted:
    """What is owed now: keys that unseen changes left incomplete, and those that rows moved to and nobody has read."""
    if staged.reset:
        return Admitted(staged.chunk, rows, replaces=staged.after)
    mine = unseen & set(staged.keys) if staged.keys else unseen  # others had chunks of their own
    fresh = mine | moved  # a row that was owed may move before it is read again
    return Admitted(staged.chunk, rows, tuple(sorted(fresh)), tuple(sorted(paid - fresh)))


def _place(staged: Staged) -> tuple[str, str, str]:
    return staged.chunk.run, staged.chunk.schema, staged.chunk.table


def _transaction_id(chunk: ChunkId) -> str:
    """The id of the transaction that a chunk becomes: `RUN.SCHEMA.TABLE.NUMBER`. Chunks are numbered within their
    table, so its name is part of it: event ids are made of it, and no two changes of a log may share one. Names are
    percent-encoded: a dot separates, and envelopes need not escape anything."""
    schema, table = (quote(name, safe="").replace(".", "%2E") for name in (chunk.schema, chunk.table))
    return f"{chunk.run}.{schema}.{table}.{chunk.number}"


def request_needed(needs: list[Need], source: str, ledger: SnapshotLedger, log: LogWriter) -> None:
    """Request what the stream found out it cannot tell, and only then take it off its list."""
    for need in list(needs):
        table = TableRequest(need.schema, need.table)
        if need.whole:
            ledger.request_parts(source, need.reason, table, [Extent(whole=True)], log.log_id)
        else:
            ledger.request(source, need.reason, [table], log_id=log.log_id, since=0)
        failpoint("snapshot.need.after_request")
        needs.remove(need)


class _Frames:
    """Frames of one transaction of the log, numbered through."""

    def __init__(self, schema_id: int, tx_id: str, settled: str, at_us: int) -> None:
        self._schema_id, self._tx_id, self._at_us = schema_id, tx_id, at_us
        self._position = f"{settled}#{tx_id}"
        self._parts: list[tuple[pa.RecordBatch, tuple[int, ...]]] = []
        self.count = 0

    def add(self, rows: pa.RecordBatch, lanes: tuple[int, ...]) -> None:
        count = rows.num_rows
        if not count:
            return
        order = np.argsort(np.argsort(rows.column("row").to_numpy(), kind="stable")).astype(np.int32)
        fixed = {
            "row": pa.array(order),
            "schema_id": pa.array(np.full(count, self._schema_id, dtype=np.int32)),
            "tx": pa.array(np.zeros(count, dtype=np.int32)),
            "ordinal": pa.array(order + np.int32(self.count)),
        }
        columns = [fixed.get(name, rows.column(name)) for name in ROWS.names]
        self._parts.append((pa.RecordBatch.from_arrays(columns, schema=ROWS), lanes))
        self.count += count

    def captures(self, resume: Mapping[str, str], schema: TableSchema, admitted: Admitted) -> list[Capture]:
        """Parts of an open transaction, then its end with everything that is atomic with it."""
        if not self._parts:
            return [Capture(None, resume, (schema,), None, admitted)]
        *parts, last = self._parts
        captures = [Capture(self._frame(*part, ended=False), STILL_OPEN) for part in parts]
        return [*captures, Capture(self._frame(*last, ended=True), resume, (schema,), None, admitted)]

    def _frame(self, rows: pa.RecordBatch, lanes: tuple[int, ...], *, ended: bool) -> Frame:
        fields: dict[str, list[Any]] = {
            "tx_id": [self._tx_id],
            "position": [self._position],
            "ts_us": [self._at_us],
            "end_row": [rows.num_rows if ended else -1],
            "end_bytes": [rows.nbytes],
        }
        return Frame(rows, pa.RecordBatch.from_pydict(fields, schema=TXS), lanes)


def _touched(found: list[Found]) -> Touched:
    touched = Touched()
    for each in found:
        columns = (each.rows.column(name).to_pylist() for name in ("op", "key", "unchanged"))
        for op, key, unchanged in zip(*columns, strict=True):
            touched.add(op, key, None, unchanged)
    return touched


def _moved_keys(found: Found) -> Iterator[str]:
    columns = (found.rows.column(name).to_pylist() for name in ("op", "key", "unchanged"))
    for op, key, unchanged in zip(*columns, strict=True):
        if op == _CREATE and unchanged is not None and key is not None:
            yield key


def _without(batch: pa.RecordBatch, lanes: tuple[int, ...], touched: Touched) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    """The rows that are not older than what the log has."""
    if touched.truncated:
        return batch.slice(0, 0), (0,) * (LANES + 1)
    if not touched.rows:
        return batch, lanes
    stale = pc.is_in(batch.column("key"), pa.array(list(touched.rows), pa.string()))
    keep = np.flatnonzero(~np.asarray(stale))
    lane = np.searchsorted(np.array(lanes), keep, side="right") - 1
    return batch.take(keep), _offsets(lane)


def _in_lanes(found: Found) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    order = np.argsort(found.lanes, kind="stable")
    return found.rows.take(order), _offsets(found.lanes)


def _offsets(lanes: np.ndarray) -> tuple[int, ...]:
    counts = np.bincount(lanes, minlength=LANES)
    return tuple([0, *np.cumsum(counts).tolist()])
