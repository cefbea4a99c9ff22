"""The snapshot ledger: runs, their tables and chunks, and how far each is.

    run       active → done | cancelled | failed (a table of it could not be read)
    table     planning → reading (every chunk is planned) → done | gone (it is no longer there) | failed
    chunk     planned → staged (its rows are in a file) → admitted (they are in the log), and back to planned where
              the log could not take it; dropped where nobody will read it

That a chunk is admitted is decided by the log's manifest and entered here afterwards.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from tailrace.contracts import Admitted, ChunkId, Extent, Staged
from tailrace.control.store import Store
from tailrace.control.tables import indexed, snapshot_chunks, snapshot_debts, snapshot_runs, snapshot_tables
from tailrace.control.upsert import insert_missing, put
from tailrace.errors import ConfigError, TailraceError
from tailrace.schema import table_name

Columns = ReadOnlyColumnCollection[str, sa.Column[Any]]
Condition = sa.ColumnElement[bool]
_RUN, _TABLE, _CHUNK, _DEBT = snapshot_runs.c, snapshot_tables.c, snapshot_chunks.c, snapshot_debts.c
_WAITING = _CHUNK.state.in_(["planned", "staged"])
_READ = sa.or_(sa.and_(_RUN.state == "active", _TABLE.state != "failed"), _TABLE.state == "done")
"""A table that was read, or is about to be."""


@dataclass(frozen=True)
class TableRequest:
    """A table to be read, or the part of it that fulfils `filter`."""

    schema: str
    table: str
    filter: str | None = None
    estimate: int | None = None


@dataclass(frozen=True)
class Run:
    """A snapshot. `since` is the log's offset before which nothing concerns it."""

    id: str
    source: str
    reason: str
    state: str
    log_id: str
    since: int
    created_us: int
    finished_us: int | None
    error: dict[str, str] | None


@dataclass(frozen=True)
class TableRun:
    """A table of a run."""

    run: str
    schema: str
    table: str
    filter: str | None
    state: str
    estimate: int | None
    rows_read: int
    rows_admitted: int
    error: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return table_name(self.schema, self.table)


class SnapshotLedger:
    """The ledger of all sources in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- runs ------------------------------------------------------------------------------------------------

    def request(self, source: str, reason: str, tables: Sequence[TableRequest], *, log_id: str, since: int) -> str:
        """A new run; returns its id."""
        with self._store.transaction() as connection:
            run = _begin(connection, source, reason, log_id, since)
            if tables:
                connection.execute(sa.insert(snapshot_tables), [_requested(run, each) for each in tables])
        return run

    def request_parts(self, source: str, reason: str, table: TableRequest, parts: Sequence[Extent], log_id: str) -> str:
        """A new run over just these parts of a table; returns its id. `table.filter` tells people what they are."""
        with self._store.transaction() as connection:
            run = _begin(connection, source, reason, log_id, 0)
            place = {"run": run, "schema_name": table.schema, "table_name": table.table, "state": "planned"}
            rows = [
                {**place, "number": number, "extent": json.dumps(asdict(each))} for number, each in enumerate(parts)
            ]
            connection.execute(sa.insert(snapshot_tables), [{**_requested(run, table), "state": "reading"}])
            connection.execute(sa.insert(snapshot_chunks), rows)
        return run

    def runs(self, source: str, state: str | None = None) -> list[Run]:
        """A source's runs, oldest first."""
        query = sa.select(snapshot_runs).where(_RUN.source == source).order_by(_RUN.id)
        if state is not None:
            query = query.where(_RUN.state == state)
        with self._store.transaction() as connection:
            return [_run(row) for row in connection.execute(query)]

    def run(self, run: str) -> Run:
        """Raises `snapshot.missing`."""
        with self._store.transaction() as connection:
            row = connection.execute(sa.select(snapshot_runs).where(_RUN.id == run)).one_or_none()
        if row is None:
            hint = "it may be of another data directory"
            raise ConfigError("snapshot.missing", f"there is no snapshot {run!r}", hint=hint)
        return _run(row)

    def tables(self, run: str) -> list[TableRun]:
        query = sa.select(snapshot_tables).where(_TABLE.run == run).order_by(_TABLE.schema_name, _TABLE.table_name)
        with self._store.transaction() as connection:
            return [_table(row) for row in connection.execute(query)]

    def covered(self, source: str, log_id: str) -> set[tuple[str, str]]:
        """Tables with a whole snapshot in the log, or one under way that has not failed."""
        query = (
            sa.select(_TABLE.schema_name, _TABLE.table_name)
            .select_from(snapshot_tables.join(snapshot_runs))
            .where(_RUN.source == source, _RUN.log_id == log_id, _TABLE.filter.is_(None))
            .where(_READ)
        )
        with self._store.transaction() as connection:
            return {(schema, table) for schema, table in connection.execute(query)}

    def read_since(self, source: str, log_id: str, since_us: int) -> dict[str, bool]:
        """Tables of runs over whole tables that were requested at `since_us` or later. True: their rows are all in the
        log. False: they are still coming."""
        query = (
            sa.select(_TABLE.schema_name, _TABLE.table_name, _TABLE.state)
            .select_from(snapshot_tables.join(snapshot_runs))
            .where(_RUN.source == source, _RUN.log_id == log_id, _TABLE.filter.is_(None))
            .where(_RUN.created_us >= since_us)
            .where(_READ)
        )
        found: dict[str, bool] = {}
        with self._store.transaction() as connection:
            for schema, table, state in connection.execute(query):
                name = table_name(schema, table)
                found[name] = found.get(name, False) or state == "done"
        return found

    def failed(self, source: str) -> list[TableRun]:
        """Tables that could not be read and that no later run has read, or is about to; oldest run first."""
        later, run = snapshot_tables.alias(), snapshot_runs.alias()
        same = (later.c.schema_name == _TABLE.schema_name, later.c.table_name == _TABLE.table_name)
        whole = sa.or_(later.c.filter.is_(None), _TABLE.filter.is_not(None))
        since = (later.c.run > _TABLE.run, run.c.id == later.c.run, run.c.source == source, run.c.state != "cancelled")
        query = (
            sa.select(snapshot_tables)
            .select_from(snapshot_tables.join(snapshot_runs))
            .where(_RUN.source == source, _TABLE.state == "failed")
            .where(~sa.exists().where(*since, *same, whole).correlate(snapshot_tables))
            .order_by(_TABLE.run, _TABLE.schema_name, _TABLE.table_name)
        )
        with self._store.transaction() as connection:
            return [_table(row) for row in connection.execute(query)]

    def cancel(self, run: str) -> bool:
        """Stop it where it is; what is in the log stays. False where it is over already."""
        return self._end(run, "cancelled", None)

    def begin_at(self, run: str, since: int) -> None:
        """Nothing in the log before `since` concerns this run."""
        with self._store.transaction() as connection:
            connection.execute(sa.update(snapshot_runs).where(_RUN.id == run).values(since=since))

    def fail(self, run: str, error: TailraceError) -> bool:
        return self._end(run, "failed", error)

    def drop_table(self, table: TableRun | ChunkId) -> None:
        """The table is no longer there: the run goes on without it."""
        self._close(table, state="gone")

    def fail_table(self, table: TableRun | ChunkId, error: TailraceError) -> None:
        """The table cannot be read: the run goes on without it, and fails when it is over."""
        told = {**error.as_dict(), "where": error.where or f"{table.schema}.{table.table}"}
        self._close(table, state="failed", error=json.dumps(told))

    def _close(self, table: TableRun | ChunkId, **values: str) -> None:
        with self._store.transaction() as connection:
            _drop_chunks(connection, table)
            unfinished = sa.update(snapshot_tables).where(*_of_table(_TABLE, table), _TABLE.state != "done")
            connection.execute(unfinished.values(**values))
            _finish(connection, table.run)

    def _end(self, run: str, state: str, error: TailraceError | None) -> bool:
        told = None if error is None else json.dumps(error.as_dict())
        active = sa.update(snapshot_runs).where(_RUN.id == run, _RUN.state == "active")
        with self._store.transaction() as connection:
            ended = connection.execute(active.values(state=state, error=told, finished_us=_now_us()))
            return bool(ended.rowcount)

    # -- chunks ----------------------------------------------------------------------------------------------

    def last_extent(self, table: TableRun) -> Extent | None:
        """Where planning stands: the newest chunk."""
        planned = sa.select(_CHUNK.extent).where(*_of_table(_CHUNK, table))
        with self._store.transaction() as connection:
            found = connection.execute(planned.order_by(_CHUNK.number.desc()).limit(1)).scalar_one_or_none()
        return None if found is None else Extent.from_dict(json.loads(found))

    def plan(self, table: TableRun, extent: Sequence[Extent], *, complete: bool) -> None:
        """Further chunks of a table; `complete`: these are the last."""
        place = {"run": table.run, "schema_name": table.schema, "table_name": table.table, "state": "planned"}
        with self._store.transaction() as connection:
            first = _count(connection, *_of_table(_CHUNK, table))
            rows = [
                {**place, "number": number, "extent": json.dumps(asdict(each))}
                for number, each in enumerate(extent, first)
            ]
            if rows:
                connection.execute(sa.insert(snapshot_chunks), rows)
            if complete:
                connection.execute(sa.update(snapshot_tables).where(*_of_table(_TABLE, table)).values(state="reading"))
                _finish(connection, table.run)

    def plan_anew(self, of: TableRun | ChunkId) -> bool:
        """A table gets other chunks from its beginning: those that nobody has read yet, or a chunk `of` it, are of a
        key that it no longer has, and so is what it owes. False where its run is over just some keys, which name no
        rows now."""
        with self._store.transaction() as connection:
            if isinstance(of, ChunkId) and not _move(connection, of, _CHUNK.state == "planned", state="dropped"):
                return True  # found out before, by another chunk
            number = _count(connection, *_of_table(_CHUNK, of))
            first = sa.select(_CHUNK.extent).where(*_of_table(_CHUNK, of), _CHUNK.number == 0)
            if number and Extent.from_dict(json.loads(connection.execute(first).scalar_one())).keys:
                return False
            _drop_chunks(connection, of)
            connection.execute(sa.delete(snapshot_debts).where(*_of_table(_DEBT, of)))
            place = {"run": of.run, "schema_name": of.schema, "table_name": of.table, "number": number}
            begin = {**place, "state": "dropped", "extent": json.dumps(asdict(Extent()))}  # for `last_extent`
            connection.execute(sa.insert(snapshot_chunks).values(**begin))
            connection.execute(sa.update(snapshot_tables).where(*_of_table(_TABLE, of)).values(state="planning"))
        return True

    def planned_once(self, chunk: ChunkId) -> bool:
        """Whether the table of a chunk was never planned anew, so that its ranges of keys do not overlap."""
        with self._store.transaction() as connection:
            return not _count(connection, *_of_table(_CHUNK, chunk), _CHUNK.state == "dropped")

    def chunks(self, run: str, state: str, limit: int = -1) -> list[tuple[ChunkId, Extent]]:
        """A run's chunks in this state, in order; at most `limit` where that is not negative."""
        query = (
            sa.select(_CHUNK.run, _CHUNK.schema_name, _CHUNK.table_name, _CHUNK.number, _CHUNK.extent)
            .where(_CHUNK.run == run, _CHUNK.state == state)
            .order_by(_CHUNK.schema_name, _CHUNK.table_name, _CHUNK.number)
            .limit(limit if limit >= 0 else None)
        )
        with self._store.transaction() as connection:
            found = connection.execute(query).all()
        return [(ChunkId(*row[:4]), Extent.from_dict(json.loads(row[4]))) for row in found]

    def count(self, run: str, state: str) -> int:
        """How many chunks are in this state."""
        with self._store.transaction() as connection:
            return _count(connection, _CHUNK.run == run, _CHUNK.state == state)

    def unfinished(self, table: TableRun) -> int:
        """How many chunks of a table are not in the log yet."""
        with self._store.transaction() as connection:
            return _count(connection, *_of_table(_CHUNK, table), _WAITING)

    def stage(self, chunks: Iterable[Staged]) -> None:
        """These were read. A chunk that meanwhile is further, or whose run is over, keeps its state."""
        with self._store.transaction() as connection:
            for each in chunks:
                text = json.dumps(each.as_dict())
                active = sa.exists().where(_RUN.id == each.chunk.run, _RUN.state == "active")
                if _move(connection, each.chunk, _CHUNK.state == "planned", active, state="staged", staged=text):
                    _add(connection, each.chunk, _TABLE.rows_read, each.rows)

    def staged(self, source: str) -> list[Staged]:
        """Chunks of active runs that wait for the log."""
        query = (
            sa.select(_CHUNK.staged)
            .select_from(snapshot_chunks.join(snapshot_runs))
            .where(_RUN.source == source, _RUN.state == "active", _CHUNK.state == "staged")
            .order_by(_CHUNK.run, _CHUNK.schema_name, _CHUNK.table_name, _CHUNK.number)
        )
        with self._store.transaction() as connection:
            found = connection.execute(query).scalars().all()
        return [Staged.from_dict(json.loads(text)) for text in found]

    def discard(self, staged: Staged) -> None:
        """The log could not take it: it is read again."""
        again = {"state": "planned", "staged": None, "attempts": _CHUNK.attempts + 1}
        with self._store.transaction() as connection:
            if _move(connection, staged.chunk, _CHUNK.state == "staged", **again):
                _add(connection, staged.chunk, _TABLE.rows_read, -staged.rows)

    def owed(self, run: str, schema: str, table: str) -> set[str]:
        """Keys whose rows must be read again."""
        of_table = (_DEBT.run == run, _DEBT.schema_name == schema, _DEBT.table_name == table)
        with self._store.transaction() as connection:
            return set(connection.execute(sa.select(_DEBT.row_key).where(*of_table)).scalars())

    # -- what the log decided --------------------------------------------------------------------------------

    def indexed(self, source: str, log_id: str) -> int:
        """Up to which offset of the log its admissions are entered here."""
        of_log = (indexed.c.source == source, indexed.c.log_id == log_id)
        with self._store.transaction() as connection:
            return connection.execute(sa.select(indexed.c.log_offset).where(*of_log)).scalar_one_or_none() or 0

    def enter(self, source: str, log_id: str, offset: int, admitted: Admitted | None) -> None:
        """The log is at `offset`, with this admission as its newest; entering one twice is harmless."""
        with self._store.transaction() as connection:
            if admitted is not None:
                _admit(connection, admitted)
            put(connection, indexed, {"source": source, "log_id": log_id, "log_offset": offset})


def _begin(connection: sa.Connection, source: str, reason: str, log_id: str, since: int) -> str:
    """A run without tables yet; returns its id."""
    run = f"{int(time.time() * 1000):013x}{uuid.uuid4().hex[:6]}"
    made = {"id": run, "source": source, "reason": reason, "log_id": log_id, "since": since}
    connection.execute(sa.insert(snapshot_runs).values(**made, state="active", created_us=_now_us()))
    return run


def _admit(connection: sa.Connection, admitted: Admitted) -> None:
    chunk = admitted.chunk
    if not _move(connection, chunk, _CHUNK.state != "admitted", state="admitted", staged=None):
        return
    _add(connection, chunk, _TABLE.rows_admitted, admitted.rows)
    if admitted.paid:
        paid = sa.delete(snapshot_debts).where(*_of_table(_DEBT, chunk), _DEBT.row_key == sa.bindparam("paid"))
        connection.execute(paid, [{"paid": key} for key in admitted.paid])
    place = {"run": chunk.run, "schema_name": chunk.schema, "table_name": chunk.table}
    insert_missing(connection, snapshot_debts, [{**place, "row_key": key} for key in admitted.owed])
    _finish(connection, chunk.run)


def _drop_chunks(connection: sa.Connection, table: TableRun | ChunkId) -> None:
    """Nobody reads them any more. They keep their numbers: the log may be taking one in right now."""
    waiting = sa.update(snapshot_chunks).where(*_of_table(_CHUNK, table), _WAITING)
    connection.execute(waiting.values(state="dropped", staged=None))


def _finish(connection: sa.Connection, run: str) -> None:
    """A table is done when all its chunks are in the log and no key is owed; a run when all its tables are, and failed
    where one of them did."""
    waiting = sa.exists().where(*_same_table(_CHUNK), _WAITING).correlate(snapshot_tables)
    owing = sa.exists().where(*_same_table(_DEBT)).correlate(snapshot_tables)
    reading = sa.update(snapshot_tables).where(_TABLE.run == run, _TABLE.state == "reading")
    connection.execute(reading.where(~waiting, ~owing).values(state="done"))
    open_tables = sa.exists().where(_TABLE.run == run, _TABLE.state.in_(["planning", "reading"]))
    failed = sa.select(_TABLE.error).where(_TABLE.run == run, _TABLE.state == "failed").limit(1)
    error = connection.execute(failed.order_by(_TABLE.schema_name, _TABLE.table_name)).scalar_one_or_none()
    state = "done" if error is None else "failed"
    active = sa.update(snapshot_runs).where(_RUN.id == run, _RUN.state == "active")
    connection.execute(active.where(~open_tables).values(state=state, error=error, finished_us=_now_us()))


def _move(connection: sa.Connection, chunk: ChunkId, *where: Condition, **values: Any) -> bool:
    """Change a chunk that fulfils `where`; False where it does not."""
    this = (*_of_table(_CHUNK, chunk), _CHUNK.number == chunk.number)
    return bool(connection.execute(sa.update(snapshot_chunks).where(*this, *where).values(**values)).rowcount)


def _add(connection: sa.Connection, chunk: ChunkId, counter: sa.Column[Any], rows: int) -> None:
    """Count a chunk's rows at its table."""
    table = sa.update(snapshot_tables).where(*_of_table(_TABLE, chunk))
    connection.execute(table.values({counter: counter + rows}))


def _count(connection: sa.Connection, *where: Condition) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(snapshot_chunks).where(*where)).scalar_one()


def _of_table(columns: Columns, of: TableRun | ChunkId) -> tuple[Condition, ...]:
    return columns.run == of.run, columns.schema_name == of.schema, columns.table_name == of.table


def _same_table(columns: Columns) -> tuple[Condition, ...]:
    return tuple(columns[name] == _TABLE[name] for name in ("run", "schema_name", "table_name"))


def _requested(run: str, table: TableRequest) -> dict[str, Any]:
    place = {"run": run, "schema_name": table.schema, "table_name": table.table}
    return {**place, "filter": table.filter, "state": "planning", "estimate": table.estimate}


def _run(row: sa.Row[Any]) -> Run:
    return Run(**_fields(row))


def _table(row: sa.Row[Any]) -> TableRun:
    fields = _fields(row)
    return TableRun(schema=fields.pop("schema_name"), table=fields.pop("table_name"), **fields)


def _fields(row: sa.Row[Any]) -> dict[str, Any]:
    fields = dict(row._mapping)
    return {**fields, "error": json.loads(fields["error"]) if fields["error"] else None}


def _now_us() -> int:
    return int(time.time() * 1e6)
