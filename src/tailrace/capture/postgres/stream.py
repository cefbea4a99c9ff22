"""The open PostgreSQL source: reads the replication stream, decodes it, hands over whole transactions."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.capture.postgres import evolution, health, messages, outbox, setup
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.connection import APPLICATION, ReplicationStream
from tailrace.capture.postgres.drift import Drift, Need, Observation
from tailrace.capture.postgres.kernel import WAL_HEADER, Stop
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.relations import Relations
from tailrace.capture.postgres.rows import Rows
from tailrace.contracts import Capture, Frame, LogState
from tailrace.control.sightings import Sightings
from tailrace.errors import Action, SourceError, TailraceError, decide
from tailrace.schema import SchemaBook, TableSchema

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource
    from tailrace.control import Store

READ_BYTES = 512 << 10
FLOOD_BYTES = 1 << 20
"""More than this in one group commit is a flood, which is synced less often: a sync costs as much as a megabyte."""
FRAME_BYTES = 8 << 20
STREAMING_BYTES = 8 << 10
GATHER_S = 0.004
"""While that much comes at once, a little more is let gather: waking up for every packet costs more than decoding."""
MIN_ARENA_BYTES = 1 << 20
MAX_ARENA_BYTES = 1 << 30
"""A frame's text columns have 32-bit offsets."""
REPORT_S = 1.0
IDLE_S = 10.0
WAIT_S = 0.5
BUSY_WAIT_S = 0.005
HEARTBEAT = "tailrace.heartbeat"
HEARTBEAT_BYTES = 1 << 20
"""WAL that others must have written since the last heartbeat: a heartbeat alone must not keep a server busy."""
_ID_LENGTH, _LOG_ID_LENGTH = 37, 16
"""How much of both fits into an application_name of 63 characters."""
LOOK_S = 5.0
"""How often the catalog is looked at for what the stream does not tell."""
HURRY_S = 0.5
"""The same while a new table waits for open transactions to end."""


@dataclass
class Vitals:
    """What the tap shows of the stream."""

    received_lsn: int = 0
    durable_lsn: int = 0
    rows: int = 0
    transactions: int = 0
    last_commit_us: int = 0
    wal_status: str = ""
    lag_bytes: int = 0
    lag_s: float | None = None
    held_bytes: int = 0
    safe_wal_size: int | None = None
    time_to_loss_s: float | None = None


class PostgresStream:
    """One connection's worth of the stream; after an error a new one is opened and resumes from the log."""

    def __init__(
        self, config: PostgresSource, memory_bytes: int, group_commit_s: float, store: Store | None = None
    ) -> None:
        self._config = config
        self._sightings = Sightings(store, config.id) if store is not None else None
        self._group_commit_s = group_commit_s
        # The arena, the frame made of it and its serialised form are alive at once.
        self._rows = Rows(min(MAX_ARENA_BYTES, max(MIN_ARENA_BYTES, memory_bytes // 4)))
        self._patterns = TablePatterns(config.tables)
        self._outbox_tables = TablePatterns(config.outbox.tables)
        self._outbox_prefixes = outbox.Prefixes(config.outbox.prefixes)
        self._outbox_ids: set[int] = set()
        self._catalog = PostgresCatalog(config.conninfo())
        self._rows.load_decoder(Relations("", SchemaBook(), self._catalog, self._patterns.match))
        self._stream: ReplicationStream | None = None
        self._position = self._idle_lsn = 0
        self._standby = False
        self._stopping = False
        self._new_schemas: dict[int, TableSchema] = {}
        self._spilled = False
        self.vitals = Vitals()
        self.warnings: list[str] = []
        self._wait_s = WAIT_S
        self.needs_snapshot: list[Need] = []
        """Tables whose rows the stream does not tell. Whoever requests the snapshot takes the entry out after that:
        until then it comes back after a crash."""
        self.looks = 0
        """How often the catalog was looked at and what it had was taken in."""

    def stop(self) -> None:
        """End `batches` after the transactions that are already complete. Safe in a signal handler."""
        self._stopping = True

    def close(self) -> None:
        self._catalog.close()
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
                yield Capture(None, None)  # a breath: the tap looks after status and retention
                if len(data) >= STREAMING_BYTES:
                    time.sleep(GATHER_S)
                stream.wait(self._patience())
        yield from self._finished()
        self._report(stream, now=True)

    def settled(self) -> str:
        """The position up to which everything committed is in the log, whether or not it had rows for us."""
        pending = self._rows.count or self._rows.finished or self._rows.in_transaction
        return messages.lsn_text(self._position if pending else max(self._position, self._idle_lsn))

    def hurry(self, busy: bool) -> None:
        """Take breaths more often while the server is silent."""
        self._wait_s = BUSY_WAIT_S if busy else WAIT_S

    def keep_alive(self) -> None:
        """Tell the server we live while the tap waits for room in the log; nothing is read meanwhile."""
        if self._stream is not None:
            self._report(self._stream)
            self._watch()

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self, after: LogState) -> ReplicationStream:
        setup.check_settings(self._catalog)
        application = f"{APPLICATION}:{self._config.id[:_ID_LENGTH]}:{after.log_id[:_LOG_ID_LENGTH]}"
        self._stream = stream = ReplicationStream(self._config.conninfo(), application)
        self._standby = self._catalog.in_recovery()  # before the timeline is asked for: see _resume
        self._server = setup.identify(stream)
        setup.check_server(stream, self._server, after.resume)  # before anything is made on it
        tables = setup.matching_tables(self._catalog, self._patterns, self._config.publication_name)
        setup.check_outbox(self._catalog, self._outbox_tables, tables)
        if after.resume is not None:
            setup.check_publications(self._catalog, self._config.publication_name)
        publications = setup.ensure_publications(self._catalog, self._config.publication_name, tables)
        self._table_warnings = self.warnings = [
            f"{table.name} has no usable primary key or replica identity: only its inserts and truncates are captured"
            for table in tables
            if not table.identity
        ]
        slot = self._config.slot_name
        setup.end_zombie(self._catalog, slot, application)
        self._position = setup.ensure_slot(self._catalog, stream, slot, self._server, after.resume)
        self._book = after.book
        self._relations = Relations(self._server.database, self._book, self._catalog, self._wanted)
        name, first = self._config.publication_name, after.resume is None
        self._drift = Drift(self._catalog, name, self._patterns, self._sightings, first=first)
        self._observed: Observation | None = None
        self._next_look = 0.0
        self._idle_lsn = self._position
        self._last_flush = self._last_idle = self._last_report = 0.0
        self._reply_wanted = False
        self._guard = health.SlotGuard(self._catalog, slot)
        self._last_watch = 0.0
        self._last_arrival = time.monotonic()
        self._heartbeat_lsn = self._position
        self._heartbeat_s = self._heartbeat_every()
        stream.start(slot, self._position, publications)
        return stream

    def _wanted(self, schema: str, table: str) -> bool:
        """Whether changes of a table, as the stream names it, are captured."""
        return setup.fits(self._catalog, self._patterns, schema, table)

    def _is_outbox(self, schema: TableSchema) -> bool:
        tables = self._outbox_tables
        return bool(self._config.outbox.tables) and setup.fits(self._catalog, tables, schema.schema, schema.table)

    def _resume(self, lsn: int) -> dict[str, str]:
        if self._standby and not self._catalog.in_recovery():
            # What came since may be of the new timeline: a position must never carry the wrong one.
            raise SourceError("source.disconnected", "the standby was promoted", hint="it is reconnected")
        self._position = lsn
        return {
            "lsn": messages.lsn_text(lsn),
            "system": self._server.system,
            "timeline": self._server.timeline,
            "database": self._server.database,
        }

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
        schema = self._relations.announce(relation, messages.lsn_text(self._rows.commit_lsn))
        if schema is not None and known is not None and schema.id != known.id:
            yield from self._evolve(known, schema)
        if schema is not None and self._is_outbox(schema):
            self._outbox_ids.add(schema.id)
        self._note(schema)

    def _evolve(self, known: TableSchema, schema: TableSchema) -> Iterator[Capture]:
        if self._config.on_schema_drift == "halt":
            yield from self._finished()
            raise evolution.drifted(known, schema)
        before, after = evolution.texts(known, schema, self._catalog)
        yield from self._room_for((len(before) + len(after)) * 4 + 4096)
        self._note(schema)
        self._rows.add("s", schema, after, None, before)

    def _truncate(self, truncate: messages.Truncate) -> Iterator[Capture]:
        headers = {
            "cascade": str(truncate.cascade).lower(),
            "restart_identity": str(truncate.restart_identity).lower(),
        }
        for oid in truncate.oids:
            if not self._relations.knows(oid):
                yield from self._introduce(oid)
            schema = self._relations.get(oid)
            if schema is not None:
                yield from self._room_for(4096)
                self._rows.add("t", schema, None, headers)

    def _message(self, message: messages.Message) -> Iterator[Capture]:
        if message.prefix == HEARTBEAT:
            if not self._rows.in_transaction:
                self._idle_lsn = max(self._idle_lsn, message.lsn + 1)
            return
        schema = self._relations.message_schema(message.prefix)
        self._note(schema)
        after = message_text(message.content)
        yield from self._room_for(len(after) * 4 + 4096)
        headers = outbox.HEADERS if self._outbox_prefixes.match(message.prefix) else None
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
        if self._observed is None and time.monotonic() >= self._next_look:
            self._observed = self._drift.observe(self._relations)
        if self._observed is None or self._rows.in_transaction:
            return
        if self._observed.lsn > max(self._position, self._idle_lsn, self._rows.end_lsn):
            return
        yield from self._finished()
        observed, self._observed = self._observed, None
        yield from self._catch_up(observed)
        found = self._drift.needs(observed)
        waiting = {need[:2] for need in self.needs_snapshot}
        self.needs_snapshot += [need for need in found if need[:2] not in waiting]
        self._drift.remember(self.needs_snapshot)
        self.looks += 1
        self._next_look = time.monotonic() + (HURRY_S if self._drift.waits else LOOK_S)

    def _catch_up(self, observed: Observation) -> Iterator[Capture]:
        """The versions the log does not have, as a transaction of their own; a table's first is no change."""
        steps = self._drift.steps(observed, self._relations)
        for step in steps:
            self._note(step.after)
        changed = [(step.before, step.after) for step in steps if step.before is not None]
        if changed:
            self._rows.begin(observed.lsn - 1, int(time.time() * 1e6))
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
            yield Capture(self._tagged(frame), None, self._take_schemas(), xids)
        else:
            self._rows.grow(size)

    def _due(self) -> Iterator[Capture]:
        """Group commit: at once after a pause, else every `group_commit`, seldom while the stream is a flood."""
        now = time.monotonic()
        pause = self._group_commit_s * (4 if self._rows.done_bytes >= FLOOD_BYTES else 1)
        if self._rows.finished and (self._rows.done_bytes >= FRAME_BYTES or now >= self._last_flush + pause):
            yield from self._finished()
        idle = self._reply_wanted or now >= self._last_idle + IDLE_S
        if idle and self._idle_lsn > self._position and self._rows.empty:
            self._last_idle = now
            yield Capture(None, self._resume(self._idle_lsn))

    def _finished(self) -> Iterator[Capture]:
        if not self._rows.finished:
            return
        vitals, rows, end = self.vitals, self._rows.done, self._rows.end_lsn
        vitals.transactions += self._rows.finished
        vitals.last_commit_us = self._rows.last_commit_us
        frame, xids = self._rows.take_finished()
        self._last_flush = time.monotonic()
        self._idle_lsn = max(self._idle_lsn, end)
        # A transaction can end right after its last part was handed over: it has no rows left, and yet its end
        # must reach the log before anything else does.
        if frame is not None or self._spilled:
            self._spilled = False
            vitals.rows += rows
            yield Capture(self._tagged(frame), self._resume(end), self._take_schemas(), xids)

    def _tagged(self, frame: Frame | None) -> Frame | None:
        return outbox.tagged(frame, self._outbox_ids) if frame is not None and self._outbox_ids else frame

    def _take_schemas(self) -> tuple[TableSchema, ...]:
        schemas, self._new_schemas = tuple(self._new_schemas.values()), {}
        return schemas

    def _patience(self) -> float:
        """How long to sleep on the socket without delaying a group commit or a report."""
        if not self._rows.finished:
            return self._wait_s
        return max(0.0, self._last_flush + self._group_commit_s - time.monotonic())

    # -- looking after the slot ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Seldom, on the other connection: the slot's health, and a heartbeat where one is due.

        Raises when the slot is lost. A look that fails is left out: the stream itself may be well.
        """
        now = time.monotonic()
        if now < self._last_watch + min(health.POLL_S, self._heartbeat_s or health.POLL_S):
            return
        self._last_watch = now
        try:
            settled, committed = messages.lsn_number(self.settled()), self.vitals.last_commit_us / 1e6
            self._show(self._guard.read(time.time(), settled, committed))
            self._beat(now)
        except TailraceError as error:
            if decide(error) is Action.STOP:
                raise

    def _show(self, reading: health.Reading) -> None:
        vitals = self.vitals
        vitals.wal_status, vitals.lag_bytes, vitals.lag_s = reading.wal_status, reading.lag_bytes, reading.lag_s
        vitals.held_bytes, vitals.safe_wal_size = reading.held_bytes, reading.safe_wal_size
        vitals.time_to_loss_s = reading.time_to_loss_s
        self.warnings = self._table_warnings + [f"{one.message}: {one.hint}" for one in reading.findings]

    def _heartbeat_every(self) -> float:
        """0 where there is none: not wanted, or not possible."""
        every = self._config.heartbeat.total_seconds()
        return every if every and not self._standby and self._catalog.may_emit_messages() else 0.0

    def _beat(self, now: float) -> None:
        """Put a message into WAL that others fill while our tables are idle: decoding it lets the slot move on."""
        grown = self._guard.wal_lsn - self._heartbeat_lsn
        if not self._heartbeat_s or now < self._last_arrival + self._heartbeat_s or grown < HEARTBEAT_BYTES:
            return
        self._heartbeat_lsn = self._guard.wal_lsn
        self._catalog.execute("SELECT pg_logical_emit_message(false, %s, '')", HEARTBEAT)

    # -- talking back ----------------------------------------------------------------------------------------

    def _hear(self, pulse: messages.Keepalive) -> None:
        self.vitals.received_lsn = max(self.vitals.received_lsn, pulse.wal_end)
        self._reply_wanted = self._reply_wanted or pulse.reply
        if not self._rows.in_transaction:
            self._idle_lsn = max(self._idle_lsn, pulse.wal_end)

    def _report(self, stream: ReplicationStream, *, now: bool = False) -> None:
        clock = time.monotonic()
        if now or self._reply_wanted or clock >= self._last_report + REPORT_S:
            stream.report(self.vitals.durable_lsn, self.vitals.durable_lsn)
            self._last_report, self._reply_wanted = clock, False


def message_text(content: bytes) -> str:
    """A logical message's content as a row image: a JSON object as it is, anything else in one field."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return json.dumps({"content_base64": base64.b64encode(content).decode()})
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json.loads(text, parse_constant=_refuse), dict):
            return text.replace("\n", " ").replace("\r", " ").strip()
    return json.dumps({"content": text}, ensure_ascii=False)


def _refuse(constant: str) -> None:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(constant)


def _start(ends: array[int], index: int) -> int:
    """Where message `index`'s pgoutput part begins."""
    return (ends[index - 1] if index else 0) + WAL_HEADER
