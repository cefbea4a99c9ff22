"""The snapshot ledger: runs, their tables and chunks, and how far each is.

    run       active → done | cancelled | failed
    table     planning → reading (every chunk is planned) → done
    chunk     planned → staged (its rows are in a file) → admitted (they are in the log), and back to planned where
              the log could not take it

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

from tailrace.contracts import Admitted, ChunkId, Extent, Staged
from tailrace.control.store import Store
from tailrace.errors import TailraceError


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

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class Ledger:
    """The ledger of all sources in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- runs ------------------------------------------------------------------------------------------------

    def request(self, source: str, reason: str, tables: Sequence[TableRequest], *, log_id: str, since: int) -> str:
        """A new run; returns its id."""
        run = f"{int(time.time() * 1000):013x}{uuid.uuid4().hex[:6]}"
        with self._store.transaction() as connection:
            _insert(
                connection,
                "snapshot_runs",
                id=run,
                source=source,
                reason=reason,
                state="active",
                log_id=log_id,
                since=since,
                created_us=_now_us(),
            )
            for each in tables:
                place = {"run": run, "schema_name": each.schema, "table_name": each.table}
                _insert(
                    connection,
                    "snapshot_tables",
                    **place,
                    filter=each.filter,
                    state="planning",
                    estimate=each.estimate,
                )
        return run

    def runs(self, source: str, state: str | None = None) -> list[Run]:
        """A source's runs, oldest first."""
        query = "SELECT * FROM snapshot_runs WHERE source = :source AND (:state IS NULL OR state = :state) ORDER BY id"
        with self._store.transaction() as connection:
            return [_run(row) for row in connection.execute(sa.text(query), {"source": source, "state": state})]

    def run(self, run: str) -> Run:
        with self._store.transaction() as connection:
            return _run(connection.execute(sa.text("SELECT * FROM snapshot_runs WHERE id = :run"), {"run": run}).one())

    def tables(self, run: str) -> list[TableRun]:
        query = "SELECT * FROM snapshot_tables WHERE run = :run ORDER BY schema_name, table_name"
        with self._store.transaction() as connection:
            return [TableRun(*row) for row in connection.execute(sa.text(query), {"run": run})]

    def covered(self, source: str, log_id: str) -> set[tuple[str, str]]:
        """Tables with a whole snapshot in the log, or one under way."""
        query = (
            "SELECT schema_name, table_name FROM snapshot_tables JOIN snapshot_runs ON id = run "
            "WHERE source = :source AND log_id = :log_id AND filter IS NULL "
            "AND (snapshot_runs.state = 'active' OR snapshot_tables.state = 'done')"
        )
        with self._store.transaction() as connection:
            found = connection.execute(sa.text(query), {"source": source, "log_id": log_id})
            return {(schema, table) for schema, table in found}

    def cancel(self, run: str) -> bool:
        """Stop it where it is; what is in the log stays. False where it is over already."""
        return self._end(run, "cancelled", None)

    def begin_at(self, run: str, since: int) -> None:
        """Nothing in the log before `since` concerns this run."""
        with self._store.transaction() as connection:
            _execute(connection, "UPDATE snapshot_runs SET since = :since WHERE id = :run", run=run, since=since)

    def fail(self, run: str, error: TailraceError) -> bool:
        return self._end(run, "failed", error)

    def drop_table(self, table: TableRun) -> None:
        """The table is no longer there: the run goes on without it."""
        with self._store.transaction() as connection:
            _execute(connection, "DELETE FROM snapshot_chunks WHERE " + _PLACE, **_place(table))
            _execute(connection, "UPDATE snapshot_tables SET state = 'gone' WHERE " + _PLACE, **_place(table))
            _finish(connection, table.run)

    # -- chunks ----------------------------------------------------------------------------------------------

    def last_extent(self, table: TableRun) -> Extent | None:
        """Where planning stands."""
        query = f"SELECT extent FROM snapshot_chunks WHERE {_PLACE} ORDER BY number DESC LIMIT 1"
        with self._store.transaction() as connection:
            found = connection.execute(sa.text(query), _place(table)).scalar_one_or_none()
        return None if found is None else Extent.from_dict(json.loads(found))

    def plan(self, table: TableRun, extent: Sequence[Extent], *, complete: bool) -> None:
        """Further chunks of a table; `complete`: these are the last."""
        with self._store.transaction() as connection:
            first = _execute(connection, f"SELECT count(*) FROM snapshot_chunks WHERE {_PLACE}", **_place(table))
            number = first.scalar_one()
            for place, each in enumerate(extent):
                fields = {"number": number + place, "extent": json.dumps(asdict(each)), "state": "planned"}
                _insert(connection, "snapshot_chunks", **_place(table), **fields)
            if complete:
                _execute(connection, f"UPDATE snapshot_tables SET state = 'reading' WHERE {_PLACE}", **_place(table))
                _finish(connection, table.run)

    def chunks(self, run: str, state: str, limit: int = -1) -> list[tuple[ChunkId, Extent]]:
        query = (
            "SELECT run, schema_name, table_name, number, extent FROM snapshot_chunks "
            "WHERE run = :run AND state = :state ORDER BY schema_name, table_name, number LIMIT :limit"
        )
        with self._store.transaction() as connection:
            found = connection.execute(sa.text(query), {"run": run, "state": state, "limit": limit}).all()
        return [(ChunkId(*row[:4]), Extent.from_dict(json.loads(row[4]))) for row in found]

    def count(self, run: str, state: str) -> int:
        """How many chunks are in this state."""
        query = "SELECT count(*) FROM snapshot_chunks WHERE run = :run AND state = :state"
        with self._store.transaction() as connection:
            return int(_execute(connection, query, run=run, state=state).scalar_one())

    def unfinished(self, table: TableRun) -> int:
        """How many chunks of a table are not in the log yet."""
        query = f"SELECT count(*) FROM snapshot_chunks WHERE {_PLACE} AND state <> 'admitted'"
        with self._store.transaction() as connection:
            return int(_execute(connection, query, **_place(table)).scalar_one())

    def stage(self, chunks: Iterable[Staged]) -> None:
        """These were read. A chunk that meanwhile is further, or whose run is over, keeps its state."""
        with self._store.transaction() as connection:
            for each in chunks:
                change = "UPDATE snapshot_chunks SET state = 'staged', staged = :staged "
                query = f"{change} WHERE {_CHUNK} AND state = 'planned'"
                done = _execute(connection, query, staged=json.dumps(asdict(each)), **asdict(each.chunk))
                if done.rowcount:
                    rows = f"UPDATE snapshot_tables SET rows_read = rows_read + :rows WHERE {_OF_CHUNK}"
                    _execute(connection, rows, rows=each.rows, **asdict(each.chunk))

    def staged(self, source: str) -> list[Staged]:
        """Chunks of active runs that wait for the log."""
        query = (
            "SELECT staged FROM snapshot_chunks JOIN snapshot_runs ON id = run "
            "WHERE source = :source AND snapshot_runs.state = 'active' AND snapshot_chunks.state = 'staged' "
            "ORDER BY run, schema_name, table_name, number"
        )
        with self._store.transaction() as connection:
            found = connection.execute(sa.text(query), {"source": source}).scalars().all()
        return [Staged.from_dict(json.loads(text)) for text in found]

    def discard(self, staged: Staged) -> None:
        """The log could not take it: it is read again."""
        query = (
            f"UPDATE snapshot_chunks SET state = 'planned', staged = NULL, attempts = attempts + 1 "
            f"WHERE {_CHUNK} AND state = 'staged'"
        )
        with self._store.transaction() as connection:
            if _execute(connection, query, **asdict(staged.chunk)).rowcount:
                rows = f"UPDATE snapshot_tables SET rows_read = rows_read - :rows WHERE {_OF_CHUNK}"
                _execute(connection, rows, rows=staged.rows, **asdict(staged.chunk))

    def owed(self, run: str, schema: str, table: str) -> set[str]:
        """Keys whose rows must be read again."""
        query = (
            "SELECT row_key FROM snapshot_debts "
            "WHERE run = :run AND schema_name = :schema AND table_name = :table ORDER BY row_key"
        )
        with self._store.transaction() as connection:
            return set(_execute(connection, query, run=run, schema=schema, table=table).scalars())

    # -- what the log decided --------------------------------------------------------------------------------

    def indexed(self, source: str, log_id: str) -> int:
        """Up to which offset of the log its admissions are entered here."""
        query = "SELECT log_offset FROM indexed WHERE source = :source AND log_id = :log_id"
        with self._store.transaction() as connection:
            return _execute(connection, query, source=source, log_id=log_id).scalar_one_or_none() or 0

    def enter(self, source: str, log_id: str, offset: int, admitted: Admitted | None) -> None:
        """The log is at `offset`, with this admission as its newest; entering one twice is harmless."""
        with self._store.transaction() as connection:
            if admitted is not None:
                _admit(connection, admitted)
            query = (
                "INSERT INTO indexed (source, log_id, log_offset) VALUES (:source, :log_id, :offset) "
                "ON CONFLICT (source) DO UPDATE SET log_id = :log_id, log_offset = :offset"
            )
            _execute(connection, query, source=source, log_id=log_id, offset=offset)

    def _end(self, run: str, state: str, error: TailraceError | None) -> bool:
        query = (
            "UPDATE snapshot_runs SET state = :state, error = :error, finished_us = :now "
            "WHERE id = :run AND state = 'active'"
        )
        told = None if error is None else json.dumps(error.as_dict())
        with self._store.transaction() as connection:
            done = _execute(connection, query, run=run, state=state, error=told, now=_now_us())
            return bool(done.rowcount)


_PLACE = "run = :run AND schema_name = :schema_name AND table_name = :table_name"
_OF_CHUNK = "run = :run AND schema_name = :schema AND table_name = :table"
_CHUNK = f"{_OF_CHUNK} AND number = :number"


def _admit(connection: sa.Connection, admitted: Admitted) -> None:
    chunk = asdict(admitted.chunk)
    query = f"UPDATE snapshot_chunks SET state = 'admitted', staged = NULL WHERE {_CHUNK} AND state <> 'admitted'"
    if not _execute(connection, query, **chunk).rowcount:
        return
    rows = f"UPDATE snapshot_tables SET rows_admitted = rows_admitted + :rows WHERE {_OF_CHUNK}"
    _execute(connection, rows, rows=admitted.rows, **chunk)
    place = {"run": admitted.chunk.run, "schema_name": admitted.chunk.schema, "table_name": admitted.chunk.table}
    for key in admitted.paid:
        _execute(connection, f"DELETE FROM snapshot_debts WHERE {_PLACE} AND row_key = :key", **place, key=key)
    for key in admitted.owed:
        query = "INSERT OR IGNORE INTO snapshot_debts VALUES (:run, :schema_name, :table_name, :key)"
        _execute(connection, query, **place, key=key)
    _finish(connection, admitted.chunk.run)


def _finish(connection: sa.Connection, run: str) -> None:
    """A table is done when all its chunks are in the log and no key is owed; a run when all its tables are."""
    same = "run = t.run AND schema_name = t.schema_name AND table_name = t.table_name"
    tables = (
        "UPDATE snapshot_tables AS t SET state = 'done' WHERE run = :run AND state = 'reading' "
        f"AND NOT EXISTS (SELECT 1 FROM snapshot_chunks WHERE {same} AND state <> 'admitted') "
        f"AND NOT EXISTS (SELECT 1 FROM snapshot_debts WHERE {same})"
    )
    _execute(connection, tables, run=run)
    whole = (
        "UPDATE snapshot_runs SET state = 'done', finished_us = :now WHERE id = :run AND state = 'active' "
        "AND NOT EXISTS (SELECT 1 FROM snapshot_tables WHERE run = :run AND state NOT IN ('done', 'gone'))"
    )
    _execute(connection, whole, run=run, now=_now_us())


def _execute(connection: sa.Connection, query: str, **values: Any) -> sa.CursorResult[Any]:
    return connection.execute(sa.text(query), values)


def _insert(connection: sa.Connection, table: str, **values: Any) -> None:
    names = ", ".join(values)
    _execute(connection, f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})", **values)


def _place(table: TableRun) -> dict[str, str]:
    return {"run": table.run, "schema_name": table.schema, "table_name": table.table}


def _run(row: sa.Row[Any]) -> Run:
    fields = dict(row._mapping)
    return Run(**{**fields, "error": json.loads(fields["error"]) if fields["error"] else None})


def _now_us() -> int:
    return int(time.time() * 1e6)
