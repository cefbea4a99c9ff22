"""Events as rows of one table. Tasks stage them, one commit brings them into the table together with the mark.

    1. each task copies its events into an unlogged table, under a name of its own for them    nobody looks there
    2. the driver inserts what tasks say that they staged, and moves the mark                  ← the commit

What is staged and never committed is removed by the next commit. A server that crashes empties unlogged tables, so the
rows are counted before they are believed.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.contracts import Rejected, Span, Written
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.sinks.isolate import isolated
from tailrace.sinks.postgres.connection import Address, Session, refused, told
from tailrace.sinks.postgres.copying import copy_text
from tailrace.sinks.postgres.ledger import Ledger

COLUMNS = {
    "event_id": "uuid",
    "event_key": "text",
    "event_value": "json",
    "source_topic": "text",
    "source_partition": "integer",
    "source_offset": "bigint",
}
"""Of the table, with the types that it is made with."""
TOKEN = "_tailrace_token"
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_PRESENT = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_UNIQUE = """
SELECT FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL
    AND indnkeyatts = 1 AND indkey[0] = (
        SELECT attnum FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'event_id')"""


@dataclass(frozen=True)
class Receipt:
    """What a task staged."""

    token: str
    rows: int


@dataclass(frozen=True)
class EventTable:
    """The table, and what the sink has beside it; picklable."""

    address: Address
    ledger: Ledger
    schema: str
    table: str
    make: bool

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def staged(self) -> sql.Identifier:
        """Where tasks put their events. Another pipeline's sink has another."""
        owner = json.dumps([self.ledger.pipeline, self.ledger.sink]).encode()
        return self.ledger.name(f"staged_{hashlib.sha256(owner).hexdigest()[:16]}")

    # -- on the driver ---------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make what is missing. What was staged and never committed goes."""
        session = self.address.connect()
        try:
            self.ledger.make(session)
            self._make(session)
            session.commit()
        except psycopg.Error as error:
            raise refused(error, f"cannot prepare {self.schema}.{self.table}", self.ledger.sink) from None
        finally:
            session.close()

    def mark(self, log_id: str) -> int:
        session = self.address.connect()
        try:
            return self.ledger.mark(session, log_id) or 0
        except psycopg.Error as error:
            raise refused(error, "cannot read the sink's mark", self.ledger.sink) from None
        finally:
            session.close()

    def commit(self, span: Span, receipts: Sequence[str]) -> None:
        """Insert what was staged and move the mark, in one transaction. One that is there changes nothing. Dead letters
        leave the mark where it is: each is in the table, or not, by its id."""
        staged = [Receipt(**json.loads(each)) for each in receipts if each]
        session = self.address.connect()
        try:
            mark = self.ledger.mark(session, span.log_id, lock=True) or 0
            if span.letters or mark < span.end:
                self._insert(session, staged)
                self.ledger.move(session, span.log_id, mark if span.letters else span.end)
                failpoint("postgres.events.before_commit")
                session.commit()
        except psycopg.Error as error:
            raise self._failed(error) from None
        finally:
            session.close()

    def present(self, events: Sequence[str]) -> frozenset[str]:
        """Those of these event ids that are in the table."""
        wanted = {str(uuid.UUID(each)): each for each in events if _UUID.fullmatch(each)}
        if not wanted:
            return frozenset()
        session = self.address.connect()
        try:
            ids = sql.SQL(", ").join(map(sql.Literal, wanted))  # of whatever type the column is
            here = sql.SQL("SELECT event_id::text FROM {} WHERE event_id IN ({})").format(self.name, ids)
            return frozenset(wanted[str(uuid.UUID(event))] for (event,) in session.rows(here))
        except psycopg.Error as error:
            raise refused(error, f"cannot read {self.schema}.{self.table}", self.ledger.sink) from None
        finally:
            session.close()

    def _insert(self, session: Session, staged: Sequence[Receipt]) -> None:
        tokens = [each.token for each in staged]
        here = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)").format(self.staged, sql.Identifier(TOKEN))
        if staged and session.rows(here, (tokens,))[0][0] != sum(each.rows for each in staged):
            raise SinkError(
                "sink.unavailable",
                "the database lost what was staged: it was restarted, or another run of this pipeline removed it",
                hint="the batch is delivered again by itself; if that does not end, look for a second run",
                where=self.ledger.sink,
            )
        insert = sql.SQL(
            "INSERT INTO {} ({names}) SELECT {names} FROM {} WHERE {} = ANY(%s) ORDER BY source_offset, ctid "
            "ON CONFLICT (event_id) DO NOTHING"
        ).format(self.name, self.staged, sql.Identifier(TOKEN), names=_names())
        if staged:
            session.execute(insert, (tokens,))
            session.execute(sql.SQL("TRUNCATE {}").format(self.staged))

    def _failed(self, error: psycopg.Error) -> SinkError:
        hint = "mend what it names: a constraint, a trigger or a grant of the table; the sink then goes on"
        return SinkError(
            "sink.table_failed",
            f"{self.schema}.{self.table} cannot be written: {told(error)}",
            hint=hint,
            where=self.ledger.sink,
        )

    def _make(self, session: Session) -> None:
        name = session.text(self.name)
        if not session.rows(sql.SQL("SELECT to_regclass(%s) IS NOT NULL"), (name,))[0][0]:
            self._create(session)
        present = {each for (each,) in session.rows(sql.SQL(_PRESENT), (name,))}
        missing = [each for each in COLUMNS if each not in present]
        if missing or not session.rows(sql.SQL(_UNIQUE), (name, name)):
            lacks = f"has no column {', '.join(missing)}" if missing else "has no unique index on event_id alone"
            raise SinkError(
                "sink.table_mismatch",
                f"the table {name} {lacks}",
                hint="add it, or name a table that does not exist: it is made",
                where=self.ledger.sink,
            )
        session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.staged))
        session.execute(
            sql.SQL("CREATE UNLOGGED TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS, {} uuid)").format(
                self.staged, self.name, sql.Identifier(TOKEN)
            )
        )

    def _create(self, session: Session) -> None:
        if not self.make:
            raise SinkError(
                "sink.table_missing",
                f"there is no table {session.text(self.name)} for events",
                hint="make it, or set auto_create_table: true",
                where=self.ledger.sink,
            )
        if not session.rows(sql.SQL("SELECT FROM pg_namespace WHERE nspname = %s"), (self.schema,)):
            session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in COLUMNS.items()
        )
        session.execute(sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY (event_id))").format(self.name, columns))


_sessions: dict[Address, Session] = {}
"""Of this process: connecting takes longer than a small batch."""


@dataclass(frozen=True)
class EventWriter:
    """Stages events in one transaction."""

    table: EventTable

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        address, token = self.table.address, str(uuid.uuid4())
        session = _sessions.pop(address, None)
        if session is not None and not session.usable:
            session.close()
            session = None
        session = session or address.connect()
        try:
            written = self._write(session, batches, token)
            session.commit()
        except BaseException as error:
            session.close()
            if isinstance(error, psycopg.Error):
                raise refused(error, "cannot stage events", self.table.ledger.sink) from None
            raise
        _sessions[address] = session
        return written

    def _write(self, session: Session, batches: Iterator[pa.RecordBatch], token: str) -> Written:
        rows, rejected = 0, list[Rejected]()
        for batch in batches:
            rows += batch.num_rows
            rejected += isolated(batch, lambda part: self._copy(session, part, token))
        receipt = Receipt(token, rows - len(rejected))
        return Written(json.dumps(asdict(receipt)), tuple(rejected))

    def _copy(self, session: Session, batch: pa.RecordBatch, token: str) -> None:
        columns = [*_columns(batch), pa.repeat(token, batch.num_rows)]
        names = sql.SQL(", ").join([_names(), sql.Identifier(TOKEN)])
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(self.table.staged, names)
        try:
            with session.savepoint(), session.copy(statement) as copy:
                copy.write(copy_text(columns))
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded) as error:
            raise SinkError(
                "sink.rejected",
                f"the table does not take the event: {told(error)}",
                hint="the types and checks of the table decide that; drop or change the event by a processor",
                where=_place(batch),
            ) from None


def _columns(batch: pa.RecordBatch) -> Iterable[pa.Array[Any]]:
    yield batch.column("event_id")
    yield batch.column("event_key" if "event_key" in batch.schema.names else "key")
    yield batch.column("value")
    for name in ("topic", "lane", "seq"):
        yield batch.column(name)


def _names() -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, COLUMNS))


def _place(batch: pa.RecordBatch) -> str:
    """`schema.table at position` of the first record, which is the only one where it counts."""
    return "{}.{} at {}".format(*(batch.column(name)[0].as_py() for name in ("schema", "table", "position")))
