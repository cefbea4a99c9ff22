"""Publications: ours are made and kept as they must be; one of the user's is taken as it is.

An altered publication is a hole in the stream: PostgreSQL decodes a change with the publication as it was when the
change was made. `publication_watch` finds such holes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from tailrace.capture.postgres.catalog import GENERATED_PUBLISHED, MARK, PostgresCatalog, Table
from tailrace.capture.postgres.connection import REPAIR, quote_identifier
from tailrace.errors import SetupError, SourceError
from tailrace.failpoints import failpoint

INSERTS = "_inserts"
"""Suffix of the publication for tables whose updates and deletes cannot name a row: it publishes inserts only."""
EVERY_CHANGE = ("insert", "update", "delete", "truncate")
NEW_ROWS = ("insert", "truncate")
WHERE = "spec.source.config.publication"

_FIND = """
SELECT coalesce(obj_description(p.oid, 'pg_publication') = %s, false),
    array_remove(ARRAY[CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
        CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL),
    pubviaroot, coalesce(to_jsonb(p) ->> 'pubgencols', 's') = 's',
    (SELECT coalesce(json_agg(json_build_array(n.nspname, c.relname, r.prqual IS NULL AND r.prattrs IS NULL)), '[]')
     FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE r.prpubid = p.oid)
FROM pg_publication p WHERE pubname = %s
"""


@dataclass(frozen=True)
class Publication:
    """As the catalog has it. `via_root`: changes of partitions are published as their root's. `generated`: stored
    generated columns are published, where they can be. `tables`: those it lists, by schema and name, and whether as a
    whole: without a row filter and a column list."""

    ours: bool
    operations: tuple[str, ...]
    via_root: bool
    generated: bool
    tables: dict[tuple[str, str], bool]


def find(catalog: PostgresCatalog, name: str) -> Publication | None:
    """Reads plain catalog tables only: the view `pg_publication_tables` waits for the locks of the user's own DDL."""
    found = catalog.rows(_FIND, MARK, name)
    if not found:
        return None
    [(ours, operations, via_root, generated, tables)] = found
    listed = {(schema, table): whole for schema, table, whole in tables}
    return Publication(ours, tuple(operations), via_root, generated, listed)


def published_names(name: str) -> tuple[str, str]:
    """Where a captured table is published, one or the other."""
    return (name, name + INSERTS)


def check_there(catalog: PostgresCatalog, name: str) -> None:
    """For a log that continues: a publication made anew now would leave out, silently, what was changed without it."""
    names = published_names(name) if catalog.publication_is_ours(name) else (name,)
    for each in names:
        if find(catalog, each) is None:
            raise SourceError(
                "source.publication_lost",
                f"the publication {each!r} is gone: changes made since cannot be read",
                hint=f"make it again if it is yours; {REPAIR}",
            )


def ensure(catalog: PostgresCatalog, name: str, tables: list[Table]) -> tuple[str, ...]:
    """The publications to read. Ours are created, and made again what they must be; someone else's is only checked."""
    main = find(catalog, name)
    if main is not None and not main.ours:
        check_foreign(catalog, name, tables)
        return (name,)
    keyed = [table for table in tables if table.identity]
    keyless = [table for table in tables if not table.identity]
    options = _options(catalog)
    # An UPDATE of a published table without an identity fails in the user's own session: publish inserts only.
    # Made even while empty: WAL from before a publication was made cannot be read with it (PostgreSQL < 18).
    statements = _statements(name, main, keyed, EVERY_CHANGE, options)
    statements += _statements(name + INSERTS, find(catalog, name + INSERTS), keyless, NEW_ROWS, options)
    if statements:  # in one transaction: a table that changes sides is in one of them at any time
        catalog.execute(sql.SQL("; ").join(statements))
        failpoint("publications.after_change")
    return published_names(name)


def check_foreign(catalog: PostgresCatalog, name: str, tables: list[Table]) -> None:
    """A publication of the user's must have every captured table."""
    published = catalog.publication_tables(name) or set()
    missing = [table.name for table in tables if table.name not in published]
    if missing:
        raise lacks(name, missing)


def lacks(name: str, missing: list[str]) -> SetupError:
    """A publication does not have these tables, and we may not change it."""
    tables = ", ".join(missing)
    return SetupError(
        "source.publication",
        f"publication {name!r} does not contain {tables}",
        hint=f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {tables}",
        where=WHERE,
    )


def _statements(
    name: str, found: Publication | None, tables: list[Table], operations: tuple[str, ...], options: LiteralString
) -> list[sql.Composable]:
    """What makes a publication of ours what it must be."""
    parts = {
        "name": sql.Identifier(name),
        "tables": sql.SQL(", ").join(sql.Identifier(table.schema, table.table) for table in tables),
        "publish": sql.Literal(", ".join(operations)),
        "options": sql.SQL(options),
        "mark": sql.Literal(MARK),
    }
    if found is None:
        listed = "FOR TABLE {tables} " if tables else ""
        texts = [f"CREATE PUBLICATION {{name}} {listed}WITH (publish = {{publish}}, {{options}})"]
        texts += ["COMMENT ON PUBLICATION {name} IS {mark}"]
        return [sql.SQL(text).format(**parts) for text in texts]
    made: list[sql.Composable] = []
    if (found.operations, found.via_root, found.generated) != (operations, True, True):
        made.append(sql.SQL("ALTER PUBLICATION {name} SET (publish = {publish}, {options})").format(**parts))
    if {(table.schema, table.table): True for table in tables} != found.tables:
        made.append(_set_tables(found, tables, parts))
    return made


def _set_tables(found: Publication, tables: list[Table], parts: dict[str, sql.Composable]) -> sql.Composable:
    if tables:
        return sql.SQL("ALTER PUBLICATION {name} SET TABLE {tables}").format(**parts)
    last = sql.SQL(", ").join(sql.Identifier(*table) for table in found.tables)
    return sql.SQL("ALTER PUBLICATION {name} DROP TABLE {last}").format(**parts, last=last)


def _options(catalog: PostgresCatalog) -> LiteralString:
    """From 18 on, an UPDATE fails where a stored generated column of the replica identity is not published."""
    generated = ", publish_generated_columns = stored" if catalog.version() >= GENERATED_PUBLISHED else ""
    return "publish_via_partition_root = true" + generated
