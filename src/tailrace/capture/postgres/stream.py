"""The open PostgreSQL source: reads the replication stream, decodes it, hands over whole transactions."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.capture.postgres import evolution, locks, messages, opening, setup
from tailrace.capture.postgres.buffers import Stop
from tailrace.capture.postgres.catalog import LOCK_S, PostgresCatalog
from tailrace.capture.postgres.catalog_watch import CatalogWatch
from tailrace.capture.postgres.connection import Feedback, ReplicationStream
from tailrace.capture.postgres.drift import Drift, Observation
from tailrace.capture.postgres.kernel import WAL_HEADER
from tailrace.capture.postgres.outbox import OutboxTagger
from tailrace.capture.postgres.pace import Pace
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.publication_watch import ASPECT, PublicationWatch
from tailrace.capture.postgres.reached import Reached
from tailrace.capture.postgres.relations import Relations
from tailrace.capture.postgres.restore import check_restored
from tailrace.capture.postgres.rows import DecodedRows
from tailrace.capture.postgres.slot_watch import HEARTBEAT, SlotWatch
from tailrace.capture.postgres.vitals import Vitals
from tailrace.contracts import STILL_OPEN, Capture, LogState, Need
from tailrace.control.sightings import Sightings
from tailrace.errors import SourceError
from tailrace.schema import SchemaBook, TableSchema

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource
    from tailrace.control import Store

READ_BYTES = 512 << 10
MIN_ARENA_BYTES = 1 << 20
MAX_ARENA_BYTES = 1 << 30
"""A frame's text columns have 32-bit offsets."""


class PostgresStream:
    """One connection's worth of the stream; after an error a new one is opened and resumes from the log."""

    def __init__(
        self, config: PostgresSource, memory_bytes: int, group_commit_s: float, store: Store | None = None
    ) -> None:
        self._config = config
        self._store = store
        self._pace = Pace(group_commit_s)
        # The arena, the frame made of it and its serialised form are alive at once.
        self._rows = DecodedRows(min(MAX_ARENA_BYTES, max(MIN_ARENA_BYTES, memory_bytes // 4)))
        self._patterns = TablePatterns(config.tables)
        self._outbox = OutboxTagger(config.outbox.prefixes, config.outbox.tables)
        self._catalog = PostgresCatalog(config.conninfo(), lock_s=LOCK_S)
        self._rows.load_decoder(Relations("", SchemaBook(), self._catalog, self._patterns.match))
        self._stream: ReplicationStream | None = None
        self._feedback: Feedback | None = None
        self._position = self._idle_lsn = 0
        self._reached = Reached(0)
        self._standby = False
        self._stopping = False
        self._new_schemas: dict[int, TableSchema] = {}
        self._spilled = False
        self.vitals = Vitals()
        self.warnings: list[str] = []
        self.needs_snapshot: list[Need] = []
        """Tables whose rows the stream does not tell. Whoever requests the snapshot takes the entry out after that:
        until then it comes back after a crash."""
        self.looks = 0
        """How often the catalog was looked at and what it had was taken in."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called every second while the stream cannot begin yet; `warnings` tells why."""

    def stop(self) -> None:
        """End `batches` after the transactions that are already complete. Safe in a signal handler."""
        self._stopping = True

    def close(self) -> None:
        self._catalog.close()
        if self._feedback is not None:
            self._feedback.end()
        if self._stream is not None:
            self._stream.close()

    def acknowledge(self, resume: Mapping[str, str]) -> None:
        """Law 1: called with what the log holds durably; only this moves what the server may forget."""
        self.vitals.durable_lsn = messages.lsn_number(resume["lsn"])

    def batches(self, after: LogState) -> Iterator[Capture]:
        """Whole transactions, parts of one too large for memory, and idle positions, until `stop`."""
        stream = self._open(after)
        yield Capture(None, self._resume(self._position))
        while not self._stopping:
            data, ends = bytearray(), array("q")
            more, pulse = stream.read(data, ends, READ_BYTES)
            yield from self._decode(data, ends)
            if pulse is not None:
                self._hear(messages.keepalive(pulse))
            yield from self._due()
            yield from self._look_around()
            self._report(stream)
            self._watch()
            if not more:
                yield Capture(None, STILL_OPEN)  # a breath: the tap looks after status and retention
                time.sleep(self._pace.rest(len(data), self._rows.done_bytes))
                stream.wait(self._pace.patience(bool(self._rows.finished)))
        yield from self._finished()
        self._report(stream, now=True)

    def settled(self) -> str:
        """The position up to which everything committed is in the log, whether or not it had rows for us."""
        pending = self._rows.count or self._rows.finished or self._rows.in_transaction
        return messages.lsn_text(self._position if pending else max(self._position, self._idle_lsn))

    def hurry(self, busy: bool) -> None:
        """Take breaths more often while the server is silent."""
        self._pace.hurry(busy)

    def keep_alive(self) -> None:
        """Tell the server we live while the tap waits for room in the log; nothing is read meanwhile."""
        if self._stream is not None:
            self._report(self._stream)
            self._watch()

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self, after: LogState) -> ReplicationStream:
        config, catalog = self._config, self._catalog
        setup.check_settings(catalog)
        check_restored(config.conninfo(), catalog, after.resume)
        application = opening.application_name(config.id, after.log_id)
        self._stream = stream = ReplicationStream(config.conninfo(), application)
        place = opening.find_place(config, catalog, stream, after, self._wait)
        self._server, self._standby, self._position = place.server, place.standby, place.position
        self._reached = Reached.of(after.resume) if after.resume is not None else Reached(place.position)
        self._table_warnings = self.warnings = place.warnings
        self._begin(after)
        stream.start(config.slot_name, place.position, place.publications)
        self._feedback = Feedback(stream, lambda: self.vitals.durable_lsn)
        return stream

    def _wait(self) -> None:
        """The slot is being made, and transactions are open that it must wait for."""
        if self._stopping:
            raise SourceError("source.disconnected", "stopped while the slot was made", hint="start again")
        assert self._stream is not None
        others = locks.spoken(self._catalog.rows(locks.BLOCKERS, self._stream.pid))
        self.warnings = [f"the slot {self._config.slot_name} waits for open transactions to end: {others}"]
        self.on_wait()

    def _begin(self, after: LogState) -> None:
        """The state of a stream that has read nothing yet."""
        config, catalog, position = self._config, self._catalog, self._position
        self._relations = Relations(self._server.database, after.book, catalog, self._wanted)
        first = after.resume is None
        keep = config.snapshot.detached_partitions == "keep"
        store, named = self._store, (config.publication_name, self._patterns)
        seen, published = (Sightings(store, config.id, of) if store else None for of in ("", ASPECT))
        watch = PublicationWatch(catalog, *named, published, first=first)
        drift = Drift(catalog, *named, seen, watch, first=first, keep_detached=keep)
        self._catalog_watch = CatalogWatch(drift, self._relations, self.needs_snapshot)
        heartbeat_s = opening.heartbeat_s(config, catalog, standby=self._standby)
        self._slot_watch = SlotWatch(catalog, config.slot_name, self.vitals, heartbeat_s=heartbeat_s, position=position)
        self._idle_lsn = position
        self._last_arrival = time.monotonic()

    def _wanted(self, schema: str, table: str) -> bool:
        """Whether changes of a table, as the stream names it, are captured."""
        return setup.fits(self._catalog, self._patterns, schema, table)

    def _resume(self, lsn: int) -> dict[str, str]:
        if self._standby and not self._catalog.in_recovery():
            # What came since may be of the new timeline: a position must never carry the wrong one.
            raise SourceError("source.disconnected", "the standby was promoted", hint="it is reconnected")
        self._position = lsn
        return self._server.resume_at(lsn) | self._reached.fields()

    # -- decoding --------------------------------------------------------------------------------------------

    def _decode(self, data: bytearray, ends: array[int]) -> Iterator[Capture]:
        if not ends:
            return
        self._last_arrival = time.monotonic()
        buffer, limits = np.frombuffer(data, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)
        following = 0
        while True:
            stop, following = self._rows.decode(buffer, limits, following, self._relations)
            match stop:
                case Stop.END:
                    break
                case Stop.LOOK:
                    yield from self._look(bytes(data[_start(ends, following) : ends[following]]))
                    following += 1
                case Stop.FULL:
                    yield from self._make_room()
                case Stop.UNKNOWN:
                    place = _start(ends, following) + 1
                    yield from self._introduce(int.from_bytes(data[place : place + 4], "big"))
        head = _start(ends, len(ends) - 1) - WAL_HEADER
        self.vitals.received_lsn = max(self.vitals.received_lsn, int.from_bytes(data[head + 9 : head + 17], "big"))

    def _look(self, message: bytes) -> Iterator[Capture]:
        """The messages that are rare enough for Python."""
        match chr(message[0]):
            case "R":
                self._relations.hear(messages.relation(message))
            case "O":
                self._rows.set_origin(messages.origin(message))
            case "T":
                yield from self._truncate(messages.truncate(message))
            case "M":
                yield from self._message(messages.message(message))
            case "Y":
                pass  # a type's name: the catalog tells more
            case kind:
                raise SourceError(
                    "source.protocol", f"unknown replication message {kind!r}", hint="use PostgreSQL 15 to 18"
                )

    def _introduce(self, oid: int) -> Iterator[Capture]:
        """A version that the log does not have as the table's newest goes before its first row, in its transaction."""
        relation = self._relations.heard(oid)
        if relation is None:
            raise SourceError(
                "source.protocol",
                "the server sent a row of a table it never described",
                hint="restart the tap; if it comes back, please report it",
            )
        known = self._relations.newest(relation.schema, relation.table)
        schema = self._relations.announce(relation, messages.lsn_text(self._rows.commit_lsn), self._rows.xid)
        self._doubt()
        if schema is not None and known is not None and schema.id != known.id:
            yield from self._evolve(known, schema)
        if schema is not None:
            self._outbox.meet(schema, self._catalog)
        self._note(schema)

    def _doubt(self) -> None:
        """Have tables read anew whose columns could not be told for sure."""
        for schema, table in self._relations.doubtful:
            need = Need(schema, table, "columns in doubt")
            if need not in self.needs_snapshot:
                self.needs_snapshot.append(need)
        self._relations.doubtful.clear()

    def _evolve(self, known: TableSchema, schema: TableSchema) -> Iterator[Capture]:
        if self._config.on_schema_drift == "halt":
            yield from self._finished()
            raise evolution.drifted(known, schema)
        before, after = evolution.texts(known, schema, self._catalog)
        yield from self._room_for((len(before) + len(after)) * 4 + 4096)
        self._note(schema)
        self._rows.add("s", schema, after, None, before)

    def _truncate(self, truncate: messages.Truncate) -> Iterator[Capture]:
        for oid in truncate.oids:
            if not self._relations.knows(oid):
                yield from self._introduce(oid)
            schema = self._relations.get(oid)
            if schema is not None:
                self._relations.hear_truncate(schema, self._rows.xid)
                yield from self._room_for(4096)
                self._rows.add("t", schema, None, truncate.headers())

    def _message(self, message: messages.Message) -> Iterator[Capture]:
        if message.prefix == HEARTBEAT:
            if not self._rows.in_transaction:
                self._idle_lsn = max(self._idle_lsn, message.lsn + 1)
            return
        schema = self._relations.message_schema(message.prefix)
        self._note(schema)
        after = messages.message_text(message.content)
        yield from self._room_for(len(after) * 4 + 4096)
        headers = self._outbox.headers(message.prefix)
        if message.transactional:
            self._rows.add("m", schema, after, headers)
            return
        self._rows.begin(message.lsn, int(time.time() * 1e6))
        self._rows.add("m", schema, after, headers)
        self._rows.commit(message.lsn + 1)  # resuming at the message itself would send it again

    def _note(self, schema: TableSchema | None) -> None:
        if schema is not None:
            self._new_schemas[schema.id] = schema

    # -- the catalog -----------------------------------------------------------------------------------------

    def _look_around(self) -> Iterator[Capture]:
        """What the catalog tells beside the stream, taken in at a transaction boundary behind where it was seen."""
        seen = self._catalog_watch.observe()
        if seen is None or self._rows.in_transaction:
            return
        if seen.lsn > max(self._position, self._idle_lsn, self._rows.end_lsn):
            return
        yield from self._finished()
        yield from self._catch_up(seen)
        self._catalog_watch.done(seen)
        self.looks += 1

    def _catch_up(self, seen: Observation) -> Iterator[Capture]:
        """The versions the log does not have, as a transaction of their own; a table's first is no change."""
        steps = self._catalog_watch.steps(seen)
        for step in steps:
            self._note(step.after)
        changed = [(step.before, step.after) for step in steps if step.before is not None]
        if changed:
            self._rows.begin(seen.lsn - 1, int(time.time() * 1e6))
            for before, after in changed:
                yield from self._evolve(before, after)
            self._rows.commit(self._position)
            yield from self._finished()
        elif steps:
            yield Capture(None, self._resume(self._position), self._take_schemas())

    # -- handing over ----------------------------------------------------------------------------------------

    def _room_for(self, size: int) -> Iterator[Capture]:
        while not self._rows.fits(size):
            yield from self._make_room(size)

    def _make_room(self, size: int | None = None) -> Iterator[Capture]:
        """Hand over finished transactions; failing that a part of the open one; failing that take more memory."""
        if self._rows.finished:
            yield from self._finished()
        elif self._rows.count:
            self.vitals.rows += self._rows.count
            frame, xids = self._rows.take_open()
            self._spilled = True
            yield Capture(self._outbox.tagged(frame), STILL_OPEN, self._take_schemas(), xids)
        else:
            self._rows.grow(size)

    def _due(self) -> Iterator[Capture]:
        """A group commit, or an idle position, where it is time for one."""
        if self._rows.finished and self._pace.commit_due(self._rows.done_bytes):
            yield from self._finished()
        if self._idle_lsn > self._position and self._rows.empty and self._pace.idle_due():
            self._pace.idled()
            yield Capture(None, self._resume(self._idle_lsn))

    def _finished(self) -> Iterator[Capture]:
        if not self._rows.finished:
            return
        vitals, rows, end = self.vitals, self._rows.done, self._rows.end_lsn
        vitals.transactions += self._rows.finished
        vitals.last_commit_us = self._rows.last_commit_us
        self._reach(end)
        frame, xids = self._rows.take_finished()
        self._pace.committed()
        self._idle_lsn = max(self._idle_lsn, end)
        # A transaction can end right after its last part was handed over: it has no rows left, and yet its end
        # must reach the log before anything else does.
        if frame is not None or self._spilled:
            self._spilled = False
            vitals.rows += rows
            yield Capture(self._outbox.tagged(frame), self._resume(end), self._take_schemas(), xids)

    def _reach(self, end: int) -> None:
        """Note what the log will have with the finished transactions."""
        commit = self._rows.last_commit
        if commit is not None:
            self._reached = replace(self._reached, lsn=commit[0], at_us=commit[1], timeline=self._server.timeline)
        if self._rows.has_news:
            self._reached = replace(self._reached, end=max(self._reached.end, end))

    def _take_schemas(self) -> tuple[TableSchema, ...]:
        schemas, self._new_schemas = tuple(self._new_schemas.values()), {}
        return schemas

    # -- talking back ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Seldom: how the slot fares. Raises when it is lost."""
        if self._slot_watch.due():
            self._slot_watch.look(messages.lsn_number(self.settled()), self._last_arrival)
            self.warnings = self._table_warnings + self._slot_watch.warnings + self._catalog_watch.warnings

    def _hear(self, pulse: messages.Keepalive) -> None:
        self.vitals.received_lsn = max(self.vitals.received_lsn, pulse.wal_end)
        if pulse.reply:
            self._pace.want_reply()
        if not self._rows.in_transaction:
            self._idle_lsn = max(self._idle_lsn, pulse.wal_end)

    def _report(self, stream: ReplicationStream, *, now: bool = False) -> None:
        if now or self._pace.report_due():
            stream.report(self.vitals.durable_lsn, self.vitals.durable_lsn)
            self._pace.reported()


def _start(ends: array[int], index: int) -> int:
    """Where message `index`'s pgoutput part begins."""
    return (ends[index - 1] if index else 0) + WAL_HEADER
