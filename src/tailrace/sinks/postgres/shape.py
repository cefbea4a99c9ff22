"""What a table of the target looks like, and the statements that change it. PostgreSQL takes all of them back with the
transaction, so no plan has to survive a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from tailrace.errors import SinkError
from tailrace.kinds import Kind
from tailrace.schema import TableSchema, differences
from tailrace.sinks.lake import reshape
from tailrace.sinks.lake.defaults import defaults_of
from tailrace.sinks.postgres import columns
from tailrace.sinks.postgres.connection import Session
from tailrace.sinks.postgres.ledger import Mirrored

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"""
_OID = "SELECT to_regclass(%s)::oid::bigint, current_database()"
_UNIQUE = """
SELECT array_agg(attname::text ORDER BY attname)
FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL
    AND indexprs IS NULL
GROUP BY indexrelid"""
_PRIMARY = "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'"


@dataclass(frozen=True)
class Table:
    """A table of the target, by its name."""

    session: Session
    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def text(self) -> str:
        return self.session.text(self.identifier)

    def columns(self) -> dict[str, str]:
        """Column → its type; nothing where there is no table."""
        return dict(self.session.rows(sql.SQL(_COLUMNS), (self.text,)))

    def exists(self) -> bool:
        return self.oid()[0] is not None

    def oid(self) -> tuple[int | None, str]:
        """(the table's number, the database's name)."""
        [(number, database)] = self.session.rows(sql.SQL(_OID), (self.text,))
        return number, database

    def is_unique(self, key: Sequence[str]) -> bool:
        """Whether the table itself sees to it that no two rows have one key."""
        return sorted(key) in [names for (names,) in self.session.rows(sql.SQL(_UNIQUE), (self.text,))]

    def clear(self) -> None:
        self._run("TRUNCATE {}")

    def create(self, schema: TableSchema) -> None:
        """Make it, and the schema that it is in."""
        if not self.session.rows(sql.SQL("SELECT FROM pg_namespace WHERE nspname = %s"), (self.schema,)):
            self.session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        parts: list[sql.Composable] = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in wanted(schema).items()
        ]
        if schema.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names(schema.key)))
        self._run("CREATE TABLE {} ({})", sql.SQL(", ").join(parts))

    def rename(self, column: str, to: str) -> None:
        self._run("ALTER TABLE {} RENAME COLUMN {} TO {}", sql.Identifier(column), sql.Identifier(to))

    def drop(self, column: str) -> None:
        self._run("ALTER TABLE {} DROP COLUMN {}", sql.Identifier(column))

    def add(self, column: str, kind: str, default: str | None) -> None:
        """Add a column that has the value `default`, a text of the log, in every row that is there."""
        name, type_sql = sql.Identifier(column), sql.SQL(kind)
        if default is None:
            self._run("ALTER TABLE {} ADD COLUMN {} {}", name, type_sql)
            return
        default = columns.hexadecimal(default) if kind == "bytea[]" else default
        given = sql.SQL("{}::{}").format(sql.Literal(default), sql.SQL(columns.staged(kind)))
        read = sql.SQL("SELECT ({})::text").format(columns.value(given, kind))
        [(text,)] = self.session.rows(read)
        self._run("ALTER TABLE {} ADD COLUMN {} {} DEFAULT {}", name, type_sql, sql.Literal(text))
        self._run("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT", name)

    def widen(self, column: str, kind: str) -> None:
        name, type_sql = sql.Identifier(column), sql.SQL(kind)
        self._run("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING {}::{}", name, type_sql, name, type_sql)

    def to_text(self, column: str, present: str) -> None:
        """Make a column text, with the values it has as the log spells them."""
        name = sql.Identifier(column)
        # No subqueries are in such an expression, as elements of arrays would need.
        plain = columns.array_text(name) if present.endswith("[]") else columns.spelled(name, present)
        self._run("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT", name)
        self._run("ALTER TABLE {} ALTER COLUMN {} TYPE text USING {}", name, plain)

    def set_key(self, before: Sequence[str], key: Sequence[str]) -> None:
        """Let `key` tell rows apart, where `before` did."""
        if key and self.is_unique(key):
            return
        for (constraint,) in self.session.rows(sql.SQL(_PRIMARY), (self.text,)):
            self._run("ALTER TABLE {} DROP CONSTRAINT {}", sql.Identifier(constraint))
        for column in set(before) - set(key):
            self._run("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL", sql.Identifier(column))
        if key:
            self._run("ALTER TABLE {} ADD PRIMARY KEY ({})", names(key))

    def _run(self, statement: str, *parts: sql.Composable) -> None:
        self.session.execute(sql.SQL(statement).format(self.identifier, *parts))


def names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def wanted(schema: TableSchema) -> dict[str, str]:
    """The columns of a version, with the types that new columns get."""
    return {each.name: columns.type_of(each.kind, key=each.name in schema.key) for each in schema.columns}


def evolve(table: Table, known: Mirrored, schema: TableSchema, image: str, *, drop: bool, adapt: bool) -> Mirrored:
    """Bring the columns to `schema`. `image`: of the change that says so, with defaults of new columns. `drop`: what
    the source dropped goes. `adapt`: what cannot be widened becomes text."""
    present, types = table.columns(), wanted(schema)
    anew = {"kind": "recreate"} in differences(known.version, schema)
    current = {column.name: column.number for column in known.version.columns}
    existing = reshape.Existing(
        dict(present), {} if anew else {**known.dropped, **current}, frozenset(current), frozenset()
    )
    moves = reshape.mapped(schema.columns, existing, str, drop=drop)
    _move(table, moves, present, types)
    for name, was in moves.origins.items():
        if was is not None:
            _fit(table, schema, name, present[was], types[name], adapt=adapt)
    defaults = {} if anew or not image else defaults_of(image, schema)
    for name in moves.new:
        table.add(name, types[name], defaults.get(name))
    renamed = [moves.renamed.get(name, name) for name in known.version.key]
    table.set_key([name for name in renamed if name not in moves.dropped], schema.key)
    return Mirrored(schema, moves.others(existing))


def _move(table: Table, moves: reshape.Moves, present: Mapping[str, str], types: Mapping[str, str]) -> None:
    """Drop and rename."""
    steps = reshape.Steps(present, types, str)
    steps.apply(moves)
    for step in steps.made:
        match step:
            case reshape.Rename():
                table.rename(step.column, step.to)
            case reshape.Drop():
                table.drop(step.column)
            case _:
                raise AssertionError(step)


def _fit(table: Table, schema: TableSchema, column: str, present: str, wanted: str, *, adapt: bool) -> None:
    """Make a column hold every value of `wanted`."""
    if columns.holds(present, wanted):
        return
    if columns.wider(present, wanted):
        table.widen(column, wanted)
    elif adapt:
        table.to_text(column, present)
    else:
        raise SinkError(
            "sink.incompatible_type",
            f"the type changed: {schema.name}.{column} from {present} to {wanted}",
            hint="set evolution: adapt (the column becomes text), then start again: it catches up",
            where=schema.name,
        )


def take_over(table: Table, schema: TableSchema) -> None:
    """Refuse a table of the user's that cannot keep the version."""
    number, database = table.oid()
    same = (table.schema, table.name, database) == (schema.schema, schema.table, schema.database)
    if same and number == schema.relation != 0:
        raise SinkError(
            "sink.own_source",
            f"{schema.name} would be copied into itself: the target is the source's own table",
            hint="name another database in dsn, or other tables in schema_name and table_name",
            where=schema.name,
        )
    present = table.columns()
    kinds: dict[str, Kind] = {column.name: column.kind for column in schema.columns}
    lacks = [name for name in kinds if name not in present]
    wrong = [
        f"{name} {present[name]}"
        for name, kind in kinds.items()
        if name in present and not columns.reads(present[name], kind, key=name in schema.key)
    ]
    bare = [f"a unique index on {', '.join(schema.key)}"] if schema.key and not table.is_unique(schema.key) else []
    if lacks or wrong or bare:
        told = "; ".join(
            f"{what} {', '.join(each)}"
            for what, each in (("it lacks", lacks + bare), ("of another type:", wrong))
            if each
        )
        raise SinkError(
            "sink.table_mismatch",
            f"the table {table.text} is there already and cannot keep {schema.name}: {told}",
            hint="alter it, or drop it (it is made anew), or name others in schema_name and table_name",
            where=schema.name,
        )
