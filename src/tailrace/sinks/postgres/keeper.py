"""The driver's side of a mirror: a batch is one transaction, with a savepoint and a mark for each of its tables.

The marks are in that transaction, so nothing is ever half there and nothing comes twice (Law 4). A table that cannot go
on is rolled back to its savepoint and halts; the log keeps what it still needs, and the next start tries again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tailrace.contracts import Delivery, Span
from tailrace.errors import LogError, ProcessorError, SinkError, TailraceError
from tailrace.failpoints import failpoint
from tailrace.machine.durable import replace_file
from tailrace.sinks.lake.share import Share, shares_of
from tailrace.sinks.lake.trouble import of_the_sink, of_the_table
from tailrace.sinks.postgres.connection import Session, refused, told
from tailrace.sinks.postgres.ledger import Entry
from tailrace.sinks.postgres.table import MirrorTable
from tailrace.sinks.tables import Applied, Care, Log

if TYPE_CHECKING:
    from tailrace.sinks.postgres import PostgresMirror


class MirrorKeeper:
    def __init__(self, sink: PostgresMirror, delivery: Delivery, log: Log, state_dir: Path) -> None:
        self._sink, self._delivery, self._log = sink, delivery, log
        self._ledger = sink.ledger(delivery)
        self._begun = state_dir / "begun.json"
        self._session: Session | None = None
        self._entries: dict[str, Entry] = {}
        self._begin()

    def mark(self) -> int:
        with self._opened() as session:
            mark = self._ledger.mark(session, self._log.log_id)
            session.commit()
        return self._known(mark)

    def settle(self) -> None:
        end = self.mark()
        for name, entry in list(self._entries.items()):
            if entry.reason:
                self._catch_up(name, entry.mark, end)

    def keep(self, span: Span) -> dict[int, Applied]:
        shares = self._shares(span.start, span.end)
        start = self._start(span, self.mark())
        for end in self._log.ends(start, span.start) if start < span.start else ():
            self._batch(self._shares(start, end), start, end)
            start = end
        self._batch(shares, start, span.end)
        contents = [part.content for share in shares for part in share.parts]
        return {content.schema_id: Applied(content.rows, content.last_us) for content in contents}

    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{name} halted: {entry.reason}" for name, entry in self._entries.items() if entry.reason)

    def care(self) -> Care | None:
        return None

    # -- where the sink is -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make what is missing, and learn how far the sink is."""
        with self._opened() as session:
            self._ledger.make(session)
            mark = self._ledger.mark(session, self._log.log_id)
            if mark is None and not self._has_begun():
                self._ledger.move(session, self._log.log_id, 0)
                mark = 0
            self._known(mark)
            self._entries = self._ledger.entries(session, self._log.log_id)
            session.commit()
        replace_file(self._begun, json.dumps({"log_id": self._log.log_id}))

    def _has_begun(self) -> bool:
        """Whether there must be a mark."""
        try:
            return bool(json.loads(self._begun.read_text())["log_id"] == self._log.log_id)
        except FileNotFoundError:
            return False

    def _known(self, mark: int | None) -> int:
        if mark is None:
            raise SinkError(
                "sink.mark_lost",
                f"the schema {self._ledger.schema} says no more how far the sink is: it was emptied, or the database "
                "is another one",
                hint="restore it; or give the sink another id, then read the tables anew: tailrace snapshot PIPELINE",
                where=self._sink.id,
            )
        return mark

    def _start(self, span: Span, mark: int) -> int:
        """Where to go on. A database that was restored is behind the batch, and gets what it lacks from the log."""
        if mark >= span.start or mark == 0:
            return max(mark, span.start)
        if mark < self._log.earliest:
            raise self._expired(mark)
        return mark

    def _expired(self, mark: int) -> LogError:
        return LogError(
            "log.expired",
            f"the target holds every change before offset {mark}, but the log begins at {self._log.earliest}",
            hint="give the sink another id, then read the tables anew: tailrace snapshot PIPELINE",
            where=self._sink.id,
        )

    # -- a batch ---------------------------------------------------------------------------------------------

    def _batch(self, shares: list[Share], start: int, end: int) -> None:
        log_id, entries = self._log.log_id, dict(self._entries)
        with self._opened() as session:
            # Whoever else delivers under this name waits here, and then finds that it is done.
            mark = self._known(self._ledger.mark(session, log_id, lock=True))
            for share in shares if mark < end else ():
                entries[share.name] = self._apply(session, share, max(start, mark), end)
            self._ledger.move(session, log_id, max(mark, end))
            failpoint("postgres.mirror.before_commit")
            session.commit()
            failpoint("postgres.mirror.after_commit")
        self._entries = entries

    def _apply(self, session: Session, share: Share, start: int, end: int) -> Entry:
        """Bring one table to `end`; where it halts, say so and keep the log for it."""
        known = self._entries.get(share.name, Entry())
        if known.reason:
            return known
        entry = self._brought(session, share, start, end)
        self._ledger.move(session, self._log.log_id, entry.mark, share.name, entry.reason)
        return entry

    def _brought(self, session: Session, share: Share, start: int, end: int) -> Entry:
        table = MirrorTable(self._sink, self._delivery, self._ledger, self._log, session)
        try:
            with session.savepoint():
                table.bring(share, start, end)
                failpoint("postgres.mirror.before_release")
        except Exception as error:
            reason = self._reason(error, share.name)
            self._log.retain(share.name, start)
            return Entry(start, f"{reason}; {reason.hint}")
        return Entry(end)

    def _reason(self, error: Exception, table: str) -> TailraceError:
        """Why a table halts. What concerns the whole sink is raised."""
        if isinstance(error, psycopg.Error):
            return _of_database(error, table)
        failure = of_the_sink(error, self._sink.id)
        if failure is not None:
            raise failure
        if isinstance(error, SinkError | ProcessorError):
            return error
        return of_the_table(error, table)

    def _shares(self, start: int, end: int) -> list[Share]:
        return shares_of(self._log.contents(start, end), self._log.versions())

    # -- a table that halted ---------------------------------------------------------------------------------

    def _catch_up(self, name: str, start: int, end: int) -> None:
        """Replay `[start, end)` for one table alone, in transactions of its own."""
        if start < min(self._log.earliest, end):
            error = self._expired(start)
            self._log.retain(name, None)  # nothing that is still in the log can help it
            self._note(name, Entry(start, f"{error}; {error.hint}"))
            return
        self._entries[name] = Entry(start)
        for until in self._log.ends(start, end):
            self._replay(name, start, until)
            if self._entries[name].reason:
                return
            failpoint("postgres.catch_up.between")
            start = until
        self._note(name, Entry(end))
        self._log.retain(name, None)

    def _replay(self, name: str, start: int, until: int) -> None:
        entry = Entry(until)
        with self._opened() as session:
            self._known(self._ledger.mark(session, self._log.log_id, lock=True))
            for share in (each for each in self._shares(start, until) if each.name == name):
                entry = self._brought(session, share, start, until)
            reason = entry.reason or ("" if until == self._ledger_mark(session) else "it is catching up")
            self._ledger.move(session, self._log.log_id, entry.mark, name, reason)
            session.commit()
        self._entries[name] = entry

    def _ledger_mark(self, session: Session) -> int:
        return self._known(self._ledger.mark(session, self._log.log_id))

    def _note(self, name: str, entry: Entry) -> None:
        with self._opened() as session:
            self._ledger.move(session, self._log.log_id, entry.mark, name, entry.reason)
            session.commit()
        self._entries[name] = entry

    # -- the connection --------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        """The session, which is given up after every failure: nothing of a batch may come later."""
        session, self._session = self._session, None
        if session is not None and not session.usable:
            session.close()
            session = None
        session = session or self._sink.address().connect()
        try:
            yield session
        except psycopg.Error as error:
            session.close()
            raise refused(error, "the database refuses a batch", self._sink.id) from None
        except BaseException:
            session.close()
            raise
        self._session = session


def _of_database(error: psycopg.Error, table: str) -> SinkError:
    return SinkError(
        "sink.table_failed",
        f"{table} cannot be written: {told(error)}",
        hint="mend what it names, at the source or in the target, then start again: it catches up",
        where=table,
    )
