"""What the database's catalogs say: types, keys, tables, publications, slots. Parameters bound, names quoted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from tailrace.capture.postgres import locks
from tailrace.capture.postgres.connection import connect
from tailrace.capture.postgres.kinds import BaseType, kind_of
from tailrace.capture.postgres.messages import lsn_number
from tailrace.capture.postgres.numbers import DROPPED, Attribute
from tailrace.capture.postgres.relations import TypeInfo
from tailrace.config import redact
from tailrace.errors import SetupError, SourceError

MARK = "made by tailrace"
"""The comment on publications that are ours to change."""
GENERATED_PUBLISHED = 180_000
"""The first version that can publish generated columns, and only stored ones."""
LOCK_S = 2.0
"""How long what we do beside the stream waits for a lock: whoever waits longer holds up those who come after."""


_IDENTITY = """
CASE c.relreplident WHEN 'f' THEN NOT EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attgenerated = 'v')
ELSE EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indimmediate
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary ELSE false END
    AND (current_setting('server_version_num')::int >= %s OR NOT EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND a.attgenerated <> ''))) END
"""


@dataclass(frozen=True)
class Table:
    """A table that a pattern matches. `identity`: whether updates and deletes can name their row."""

    schema: str
    table: str
    identity: bool

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server has it."""

    plugin: str
    database: str
    active_pid: int | None
    confirmed: int
    lost: bool
    synced: bool = False
    """Whether it is a standby's copy of its primary's slot."""
    stays: bool = False
    """Whether standbys do not copy it, and could (PostgreSQL 17)."""


class PostgresCatalog:
    """Look-ups on a plain connection that is opened when first needed and again when it broke."""

    def __init__(self, dsn: str, *, lock_s: float = 0.0) -> None:
        """With `lock_s` no statement waits longer for a lock: it raises `source.locked`, with who has locks."""
        self._dsn, self._lock_s = dsn, lock_s
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._types: dict[tuple[int, int], TypeInfo] = {}

    def rows(self, query: str | sql.Composable, *parameters: Any) -> list[TupleRow]:
        found: list[TupleRow] = self._run(lambda one: one.execute(query, parameters or None).fetchall())  # type: ignore[arg-type]
        return found

    def execute(self, statement: str | sql.Composable, *parameters: Any) -> None:
        self._run(lambda connection: connection.execute(statement, parameters or None))  # type: ignore[arg-type]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def type_info(self, oid: int, modifier: int) -> TypeInfo:
        """A type's spelling, with domains followed to their base and arrays to their element."""
        if (oid, modifier) not in self._types:
            [(name,)] = self.rows("SELECT format_type(%s::oid, %s)", oid, modifier)
            base = self._resolve(oid, modifier)
            element = self._resolve(base.element, base.modifier) if base.element else None
            kind = kind_of(base, element)
            self._types[oid, modifier] = TypeInfo(name, base.oid, element.oid if element else 0, base.delimiter, kind)
        return self._types[oid, modifier]

    def primary_key(self, oid: int) -> tuple[str, ...]:
        found = self.rows(
            "SELECT a.attname FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
            "WHERE i.indrelid = %s::oid AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)",
            oid,
        )
        return tuple(name for (name,) in found)

    def attributes(self, oid: int) -> tuple[Attribute, ...]:
        """A table's columns, dropped ones too; a partitioned table's missing values are where its rows are."""
        found = self.rows(
            "WITH RECURSIVE tree AS (SELECT %s::oid AS oid UNION ALL "
            "  SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid "
            "  JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition) "
            "SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, a.attisdropped, a.attgenerated <> '', "
            "EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = a.attrelid AND r.prattrs IS NOT NULL), "
            "(SELECT (m.attmissingval::text::text[])[1] FROM pg_attribute m JOIN tree ON tree.oid = m.attrelid "
            "  WHERE m.attname = a.attname AND m.atthasmissing LIMIT 1), a.xmin::text::bigint, "
            "a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid "
            "  AND k.contype = 'n' AND NOT k.convalidated AND a.attnum = ANY (k.conkey)), "  # NOT VALID: PostgreSQL 18
            "(SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE d.adrelid = a.attrelid "
            "  AND d.adnum = a.attnum AND a.attgenerated = ''), "
            "coalesce((SELECT array_position(i.indkey::int2[], a.attnum) + 1 FROM pg_index i "
            "  WHERE i.indrelid = a.attrelid AND i.indisprimary), 0), "
            "ARRAY(SELECT e.enumlabel::text FROM pg_enum e JOIN pg_type t ON t.oid = a.atttypid "
            "  WHERE e.enumtypid = CASE t.typcategory WHEN 'A' THEN t.typelem ELSE t.oid END ORDER BY e.enumsortorder) "
            "FROM pg_attribute a WHERE a.attrelid = %s::oid AND a.attnum > 0 ORDER BY a.attnum",
            oid,
            oid,
        )
        return tuple(replace(Attribute(*row), labels=tuple(row[-1])) for row in found)

    def database(self) -> str:
        [(name,)] = self.rows("SELECT current_database()")
        return str(name)

    def setting(self, name: str) -> str:
        [(value,)] = self.rows("SELECT current_setting(%s)", name)
        return str(value)

    def version(self) -> int:
        """As PostgreSQL numbers it: 180000 is 18.0."""
        return int(self.setting("server_version_num"))

    def in_recovery(self) -> bool:
        """Whether the server is a standby."""
        [(standby,)] = self.rows("SELECT pg_is_in_recovery()")
        return bool(standby)

    def current_position(self) -> str:
        [(lsn,)] = self.rows(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
            "ELSE pg_current_wal_flush_lsn() END::text"
        )
        return str(lsn)

    def can_replicate(self) -> bool:
        [(allowed,)] = self.rows(
            "SELECT bool_or(rolsuper OR rolreplication OR rolname IN ('rds_replication', 'cloudsqlreplication')) "
            "FROM pg_roles WHERE pg_has_role(current_user, oid, 'MEMBER')"
        )
        return bool(allowed)

    def may_emit_messages(self) -> bool:
        [(allowed,)] = self.rows(
            "SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc "
            "WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace"
        )
        return bool(allowed)

    def tables(self) -> list[Table]:
        """Every table a publication could carry, partitions represented by their root.

        A generated column that is not published cannot be part of the identity: under FULL a virtual one (18 refuses
        the user's UPDATE then), in a key any of them before 18 (the key would not be whole).
        """
        found = self.rows(
            f"SELECT n.nspname, c.relname, {_IDENTITY} FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%%' "
            "ORDER BY 1, 2",
            GENERATED_PUBLISHED,
        )
        return [Table(*row) for row in found]

    def partitions(self) -> list[tuple[Table, str, str]]:
        """The partitions that hold rows, each with its root's schema and name."""
        found = self.rows(
            f"SELECT n.nspname, c.relname, {_IDENTITY}, rn.nspname, r.relname "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_class r ON r.oid = pg_partition_root(c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace "
            "WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.relispartition ORDER BY 1, 2",
            GENERATED_PUBLISHED,
        )
        return [(Table(*row[:3]), row[3], row[4]) for row in found]

    def partition_root(self, schema: str, table: str) -> tuple[str, str] | None:
        """Schema and name of the partitioned table that a partition is part of."""
        found = self.rows(
            "SELECT rn.nspname, r.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_class r ON r.oid = pg_partition_root(c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relispartition",
            schema,
            table,
        )
        return (found[0][0], found[0][1]) if found else None

    def publication_tables(self, name: str) -> set[str] | None:
        """Names of the tables in a publication; None where it does not exist.

        A partitioned table is listed, and so are its partitions where the publication names changes by them.
        """
        if not self.rows("SELECT FROM pg_publication WHERE pubname = %s", name):
            return None
        found = self.rows(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s UNION "
            "SELECT n.nspname || '.' || c.relname FROM pg_publication p JOIN pg_class c ON c.relkind = 'p' "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s AND (p.puballtables "
            "OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid) "
            "OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))",
            name,
            name,
        )
        return {table for (table,) in found}

    def publication_is_ours(self, name: str) -> bool:
        found = self.rows("SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", name)
        return found == [(MARK,)]

    def slot(self, name: str) -> Slot | None:
        found = self.rows(
            "SELECT plugin, database, active_pid, confirmed_flush_lsn::text, coalesce(wal_status = 'lost', false), "
            "coalesce((to_jsonb(s) ->> 'synced')::bool, false), "  # PostgreSQL 17 and newer
            "coalesce(NOT (to_jsonb(s) ->> 'failover')::bool, false) "
            "FROM pg_replication_slots s WHERE slot_name = %s AND slot_type = 'logical'",
            name,
        )
        if not found:
            return None
        plugin, database, pid, confirmed, *flags = found[0]
        return Slot(plugin, database, pid, lsn_number(confirmed) if confirmed else 0, *flags)

    def end_reader(self, pid: int, application: str) -> bool:
        """End the replication session `pid` where it goes by the name `application`; whether it is gone."""
        found = self.rows(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_replication WHERE pid = %s AND application_name = %s",
            pid,
            application,
        )
        return found == [(True,)]

    def _resolve(self, oid: int, modifier: int) -> BaseType:
        """The type, or what it is over where it is a domain."""
        found = self.rows(
            "SELECT t.typtype::text, t.typbasetype, t.typtypmod, format_type(t.oid, %s), t.typcategory::text, "
            "CASE WHEN e.typarray = t.oid THEN t.typelem ELSE 0 END, coalesce(e.typdelim, ',') "
            "FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s::oid",
            modifier,
            oid,
        )
        if not found:  # dropped since: the stream still has its rows, as text
            return BaseType(oid, modifier, DROPPED, "b", "U", 0, ",")
        [(form, base, declared, spelled, category, element, delimiter)] = found
        if form == "d":
            return replace(self._resolve(base, declared if declared >= 0 else modifier), domain=True)
        return BaseType(oid, modifier, spelled, form, category, element, delimiter)

    def connection(self) -> psycopg.Connection[TupleRow]:
        """The connection itself, for what is more than a look-up."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, self._lock_s)
        return self._connection

    def _run(self, action: Callable[[psycopg.Connection[TupleRow]], Any]) -> Any:
        connection = self.connection()
        with refused():
            try:
                return action(connection)
            except psycopg.errors.LockNotAvailable:
                if not self._lock_s:
                    raise
                raise locks.not_available(connection, self._lock_s) from None


@contextmanager
def refused() -> Iterator[None]:
    """What the database said no to, as an error of ours."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        text = redact(str(error).strip())
        security = "row-level security" in text
        hint = "ALTER ROLE … BYPASSRLS, or read as the table's owner" if security else "grant the role what it names"
        raise SetupError("source.privilege", text, hint=hint) from error
    except psycopg.OperationalError as error:
        raise SourceError(
            "source.disconnected",
            f"the database connection broke: {redact(str(error).strip())}",
            hint="it is retried",
        ) from error
    except psycopg.Error as error:
        raise SourceError(
            "source.refused",
            f"the database refused: {redact(str(error).strip())}",
            hint="see the server's log",
        ) from error
