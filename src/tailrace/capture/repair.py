"""Starting over after the position at the source is lost: every table is emptied and read again.

What happened between the old position and the new one cannot be known row by row, deletes least of all. So the log says
so: a truncate of each table, in the same line that forgets the position, before anything the new stream brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from tailrace.changelog import LogWriter
from tailrace.contracts import FORGOTTEN, TXS, VERDICT, Capture, Frame
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import SourceError, Verdict
from tailrace.failpoints import failpoint
from tailrace.schema import TableSchema

ASKED = "repair"
"""The reason of a run that somebody asked for with `tailrace snapshot --repair`."""
LOST = frozenset({"source.position_lost", "source.publication_lost"})
"""What `when_needed` repairs unasked: the server is the right one, and cannot give the changes after our position."""
REPAIRABLE = LOST | {"source.wrong_server", "source.publication_altered"}
"""What starting over gets out of."""


class SnapshotSettings(Protocol):
    mode: str


class Repairable(Protocol):
    """What a repair asks of a source's configuration."""

    id: str

    @property
    def snapshot(self) -> SnapshotSettings: ...

    def position(self, resume: Mapping[str, str]) -> str: ...

    def forget_position(self) -> None: ...

    def reset_rows(self, tables: Iterable[TableSchema]) -> Frame: ...

    def snapshot_tables(self) -> list[tuple[str, str, int | None]]: ...


def start_over(error: SourceError, source: Repairable, ledger: SnapshotLedger, log: LogWriter) -> bool:
    """Forget the position, if that is what is lost and somebody wants it: by `when_needed`, or by asking. False where
    nobody does; then the error stands."""
    asked = [run for run in ledger.runs(source.id, "active") if run.reason == ASKED]
    wanted = asked or (source.snapshot.mode == "when_needed" and error.code in LOST)
    if error.code not in REPAIRABLE or not wanted:
        return False
    if log.in_transaction:
        log.rollback()
    run = asked[0].id if asked else _request(source, ledger, log)
    failpoint("repair.after_request")
    ledger.begin_at(run, log.end)
    failpoint("repair.after_begin")
    source.forget_position()
    failpoint("repair.after_forget")
    log.append(Capture(_reset(source, log, run), FORGOTTEN))
    return True


def keep_verdict(error: SourceError, log: LogWriter) -> None:
    """Write a verdict into the log's position. With it no start goes on, until a repair forgets the position."""
    resume = log.state().resume
    if not isinstance(error, Verdict) or resume is None or VERDICT in resume:
        return
    if log.in_transaction:
        log.rollback()
    log.append(Capture(None, {**resume, VERDICT: error.message}))


def _request(source: Repairable, ledger: SnapshotLedger, log: LogWriter) -> str:
    tables = [TableRequest(schema, table, None, estimate) for schema, table, estimate in source.snapshot_tables()]
    return ledger.request(source.id, ASKED, tables, log_id=log.log_id, since=log.end)


def _reset(source: Repairable, log: LogWriter, run: str) -> Frame | None:
    """A truncate of every table the log has rows of."""
    newest = {(schema.schema, schema.table): schema for schema in log.book.versions if schema.columns}
    if not newest:
        return None
    frame = source.reset_rows(newest.values())
    position = source.position(log.state().resume or {})
    tx_id = f"{run}.{ASKED}.{log.end}"  # a position may be lost again before the run is over
    named = frame.txs.to_pylist()[0] | {"tx_id": tx_id, "position": f"{position}#{tx_id}"}
    return Frame(frame.rows, pa.RecordBatch.from_pylist([named], schema=TXS), frame.lanes)
