"""Rows into a table: copied into a temporary table, whose columns make texts values, then merged by two statements.

The temporary table is the session's, gone with the transaction; nothing is left behind by a batch that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.errors import SinkError
from tailrace.schema import TableSchema
from tailrace.sinks.postgres import columns
from tailrace.sinks.postgres.connection import Session
from tailrace.sinks.postgres.copying import copy_text
from tailrace.sinks.postgres.fold import Column, Names, Rows
from tailrace.sinks.postgres.shape import Table, names

_STAGED, _FILLED = sql.Identifier("pg_temp", "staged"), sql.Identifier("pg_temp", "filled")
_COMES_BACK = (
    "a row that processors had dropped comes back without columns that the source did not send",
    "ALTER TABLE … REPLICA IDENTITY FULL at the source, then give the sink another id and read the table anew",
)


class Merge:
    """Of rows of one version into one table whose columns have these `types`.

    Staged columns are `c0`, `c1` …, in the order of the version's; `d` says which rows are deletes, `u0`, `u1` …
    which have the table's value in a partial column, and `o0`, `o1` … under which key."""

    def __init__(self, session: Session, table: Table, schema: TableSchema, types: Mapping[str, str]) -> None:
        self._session, self._table, self._schema, self.types = session, table, schema, types
        self.names = Names(
            tuple(column.name for column in schema.columns),
            schema.key,
            tuple(column.name for column in schema.columns if column.kind.name == "json"),
        )

    def append(self, parts: Iterable[Rows]) -> None:
        """Add rows of a table without a key."""
        if self._stage(parts):
            self._run("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}", *self._insertion(self._values()))

    def bring(self, parts: Iterable[Rows], *, complete: bool = False) -> None:
        """Bring the rows' keys to what they say. `complete`: a row that is not there must have all of its columns."""
        staged = self._stage(parts)
        if not staged:
            return
        partial = next((list(part.unsent) for part in staged if part.unsent), [])
        moved = any(part.origins for part in staged)
        if partial and complete:
            self._refuse_incomplete(partial, moved=moved)
        filled = moved and self._fill(partial)
        if any(pc.any(part.deleted).as_py() for part in staged):
            self._delete()
        if filled:
            self._upsert(names(self.names.columns), _FILLED, sql.SQL(""))
        else:
            joined = self._here(moved=False) if partial else sql.SQL("")
            self._upsert(self._values(partial), _STAGED, sql.SQL("{} WHERE NOT d").format(joined))

    def misfits(self, parts: Iterable[Rows]) -> list[str]:
        """The columns that have values which their types do not hold."""
        found: list[str] = []
        with self._session.savepoint():
            self._stage(parts, plain=True)
            for place, name in enumerate(self.names.columns):
                if self.types[name] != columns.TEXT and not self._fits(place, name):
                    found.append(name)
        return found

    def _fits(self, place: int, name: str) -> bool:
        found = columns.checked(sql.Identifier(f"c{place}"), self.types[name])
        test = sql.SQL("SELECT count({}) FROM {}").format(found, _STAGED)
        try:
            with self._session.savepoint():
                self._session.execute(test)
        except psycopg.DataError:
            return False
        return True

    # -- staging ---------------------------------------------------------------------------------------------

    def _stage(self, parts: Iterable[Rows], *, plain: bool = False) -> list[Rows]:
        """Copy rows into the temporary table; returns what is needed to know of them."""
        staged: list[Rows] = []
        for part in parts:
            if not staged:
                self._make(part, plain=plain)
            with self._session.copy(sql.SQL("COPY {} FROM STDIN").format(_STAGED)) as copy:
                copy.write(copy_text([part.deleted, *self._read(part), *part.unsent.values(), *part.origins]))
            staged.append(Rows(part.deleted, [], part.unsent, part.origins))
        return staged

    def _read(self, part: Rows) -> Iterator[Column]:
        """The columns, with bytes in arrays as PostgreSQL reads them."""
        for name, found in zip(self.names.columns, part.columns, strict=True):
            in_array = self.types[name] == "bytea[]"
            yield pa.array(map(columns.hexadecimal, found.to_pylist()), pa.string()) if in_array else found

    def _make(self, part: Rows, *, plain: bool) -> None:
        kinds = {
            f"c{place}": columns.TEXT if plain else columns.staged(self.types[name])
            for place, name in enumerate(self.names.columns)
        }
        key = [columns.staged(self.types[name]) for name in self.names.key]
        unsent = {f"u{place}": "boolean" for place in range(len(part.unsent))}
        origins = {f"o{place}": kind for place, kind in enumerate(key[: len(part.origins)])}
        every = {"d": "boolean", **kinds, **unsent, **origins}
        declared = (sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in every.items())
        self._run("DROP TABLE IF EXISTS {}", _STAGED)
        self._run("CREATE TEMPORARY TABLE staged ({}) ON COMMIT DROP", sql.SQL(", ").join(declared))

    # -- statements ------------------------------------------------------------------------------------------

    def _delete(self) -> None:
        self._run("DELETE FROM {} t USING {} s WHERE d AND {}", self._table.identifier, _STAGED, self._same("t"))

    def _upsert(self, values: sql.Composable, source: sql.Composable, where: sql.Composable) -> None:
        others = [name for name in self.names.columns if name not in self.names.key]
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
        then = sql.SQL("DO UPDATE SET {}").format(changes) if others else sql.SQL("DO NOTHING")
        self._run(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} s {} ON CONFLICT ({}) {}",
            *(self._table.identifier, names(self.names.columns), values, source, where, names(self.names.key), then),
        )

    def _fill(self, partial: Sequence[str]) -> bool:
        """Rows that got another key, with what the table has of them, before it is deleted there."""
        self._run("DROP TABLE IF EXISTS {}", _FILLED)
        columns_of = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(value, sql.Identifier(name))
            for name, value in zip(self.names.columns, self._each(partial), strict=True)
        )
        self._run(
            "CREATE TEMPORARY TABLE filled ON COMMIT DROP AS SELECT {} FROM {} s {} WHERE NOT d",
            *(columns_of, _STAGED, self._here(moved=True)),
        )
        return True

    def _refuse_incomplete(self, partial: Sequence[str], *, moved: bool) -> None:
        unsent = sql.SQL(" OR ").join(sql.Identifier(f"u{place}") for place in range(len(partial)))
        missing = sql.SQL("SELECT FROM {} s {} WHERE NOT d AND ({}) AND h.{} IS NULL LIMIT 1")
        first = sql.Identifier(self.names.key[0])
        if self._session.rows(missing.format(_STAGED, self._here(moved=moved), unsent, first)):
            message, hint = _COMES_BACK
            raise SinkError("sink.table_failed", message, hint=hint, where=self._schema.name)

    def _here(self, *, moved: bool) -> sql.Composable:
        """The table's row of each staged row, as `h`; of one that got another key, the row that it was."""
        return sql.SQL("LEFT JOIN {} h ON {}").format(self._table.identifier, self._same("h", moved=moved))

    def _same(self, row: str, *, moved: bool = False) -> sql.Composable:
        """Whether a row of the table has a staged row's key."""
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(row, name), self._key(place, name, moved=moved))
            for place, name in enumerate(self.names.key)
        )

    def _key(self, place: int, name: str, *, moved: bool) -> sql.Composable:
        own = sql.Identifier("s", f"c{self.names.columns.index(name)}")
        found = sql.SQL("coalesce({}, {})").format(sql.Identifier("s", f"o{place}"), own) if moved else own
        return columns.value(found, self.types[name])

    def _values(self, partial: Sequence[str] = ()) -> sql.Composable:
        return sql.SQL(", ").join(self._each(partial))

    def _each(self, partial: Sequence[str]) -> list[sql.Composable]:
        """The value of each column: the staged one, or the table's."""
        found: list[sql.Composable] = []
        for place, name in enumerate(self.names.columns):
            value = columns.value(sql.Identifier("s", f"c{place}"), self.types[name])
            if name in partial:
                unsent = sql.Identifier(f"u{partial.index(name)}")
                here = sql.Identifier("h", name)
                value = sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(unsent, here, value)
            found.append(value)
        return found

    def _insertion(self, values: sql.Composable) -> tuple[sql.Composable, ...]:
        return self._table.identifier, names(self.names.columns), values, sql.SQL("{} s").format(_STAGED)

    def _run(self, statement: str, *parts: sql.Composable) -> None:
        self._session.execute(sql.SQL(statement).format(*parts))
