"""Finds publications that somebody altered: what was changed meanwhile is not in the stream, and never will be.

PostgreSQL gives a row of its catalogs another `xmin` or oid whenever it is written anew. So a publication that was put
back is told from one that nobody touched, also when nobody looked in between.
"""

from __future__ import annotations

import json

from tailrace.capture.postgres import publications
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.connection import REPAIR, quote_identifier
from tailrace.capture.postgres.memory import Memory
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.control.sightings import Name, Sightings
from tailrace.errors import SetupError, SourceError

ALTERED = "publication altered"
"""Why a table is read anew."""
ASPECT = "publications"
"""What the sightings are of."""


class PublicationWatch:
    """Compares how the captured tables are published with how they were. `warnings` tells what was found so far."""

    def __init__(
        self,
        catalog: PostgresCatalog,
        publication: str,
        patterns: TablePatterns,
        sightings: Sightings | None,
        *,
        first: bool,
    ) -> None:
        self._catalog, self._publication, self._patterns = catalog, publication, patterns
        self._memory = Memory(sightings, first=first)
        self.warnings: list[str] = []

    def look(self, *, mendable: bool) -> dict[Name, str]:
        """The captured tables, each with a text that is another one once its publication was altered.

        Raises where going on would lose changes that reading anew does not bring back: a captured table is no longer
        published, or kinds of changes are not. Unless it is `mendable`: then the next look mends it.
        """
        found = published(self._catalog, self._publication, self._patterns)
        missing = _missing(self._catalog, self._patterns, self._memory.seen, found)
        options = self._options()
        if not mendable:
            self._check(options, missing)
        return {**found, **{name: self._memory.seen[name] for name in missing}, ("", self._publication): options}

    def altered(self, seen: dict[Name, str]) -> list[Name]:
        """The tables that must be read anew. Remembers what was seen."""
        known, self._memory.seen = self._memory.seen, seen
        found = [name for name, text in seen.items() if name[0] and known.get(name, text) != text]
        if found:
            self._require_reading(found)
            names = ", ".join(".".join(name) for name in found)
            self.warnings = [f"the publication {self._publication} was altered: {names} must be read anew"]
        return found

    def inspect(self, *, mendable: bool) -> list[str]:
        """The tables that the next tap will have to read anew. Raises where it would: only what is not `mendable`, a
        publication of the user's, must have every table and every kind of change by itself."""
        known, seen = self._memory.seen, published(self._catalog, self._publication, self._patterns)
        missing = _missing(self._catalog, self._patterns, known, seen)
        if not mendable:
            self._check(self._options(), missing)
        changed = [name for name, text in seen.items() if known.get(name, text) != text]
        return sorted(".".join(name) for name in missing + changed)

    def keep(self, busy: set[Name]) -> None:
        """For the next process."""
        self._memory.keep(busy)

    def _options(self) -> str:
        """What concerns all tables: the kinds of changes, and how partitions are named."""
        found = publications.find(self._catalog, self._publication)
        return json.dumps([found.operations, found.via_root] if found is not None else None)

    def _check(self, options: str, missing: list[Name]) -> None:
        if missing:
            raise publications.lacks(self._publication, [".".join(name) for name in missing])
        was, now = json.loads(self._memory.seen.get(("", self._publication), options)), json.loads(options)
        if now is None or was is None or (set(was[0]) <= set(now[0]) and was[1] == now[1]):
            return
        name, kinds = quote_identifier(self._publication), ", ".join(was[0])
        raise SourceError(
            "source.publication_altered",
            f"the publication {self._publication!r} published {kinds}"
            f"{' by partition root' if was[1] else ''}, and now {', '.join(now[0]) or 'nothing'}"
            f"{' by partition root' if now[1] else ''}: other changes are lost",
            hint=f"ALTER PUBLICATION {name} SET (publish = '{kinds}', publish_via_partition_root = {was[1]}), and its "
            f"tables are read anew; to go on with it as it is: {REPAIR}",
            where=publications.WHERE,
        )

    def _require_reading(self, names: list[Name]) -> None:
        """Whoever may not read a table cannot read it anew."""
        closed = self._catalog.rows(_UNREADABLE, *_columns(names))
        if closed:
            tables = ", ".join(name for (name,) in closed)
            raise SetupError(
                "source.privilege",
                f"the publication {self._publication!r} was altered, and the role may not read {tables} anew",
                hint=f"GRANT SELECT ON {tables} TO the role, and start again",
            )


def published(catalog: PostgresCatalog, publication: str, patterns: TablePatterns) -> dict[Name, str]:
    """The captured tables, as the stream names them, each with the catalog rows that publish it."""
    rows = catalog.rows(_PUBLISHED, list(publications.published_names(publication)))
    return {(schema, table): text for schema, table, *root, text in rows if _fits(patterns, (schema, table), root)}


def _missing(
    catalog: PostgresCatalog, patterns: TablePatterns, known: dict[Name, str], found: dict[Name, str]
) -> list[Name]:
    """Tables that were published, and are there, and are to be captured, and are not published."""
    names = [name for name in known if name[0] and name not in found]
    rows = catalog.rows(_THERE, *_columns(names)) if names else []
    return [(schema, table) for schema, table, *root in rows if _fits(patterns, (schema, table), root)]


def _fits(patterns: TablePatterns, name: Name, root: list[str]) -> bool:
    return patterns.match(*name) or patterns.match(*root)


def _columns(names: list[Name]) -> tuple[list[str], list[str]]:
    return [schema for schema, _ in names], [table for _, table in names]


_TABLE = """
FROM unnest(%s::text[], %s::text[]) t(schema, name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace
"""
_THERE = f"SELECT n.nspname::text, c.relname::text, rn.nspname::text, r.relname::text {_TABLE}"
_UNREADABLE = f"""
SELECT c.oid::regclass::text {_TABLE}
WHERE NOT has_schema_privilege(n.oid, 'USAGE') OR NOT has_table_privilege(c.oid, 'SELECT')
"""

# Plain catalog tables only: see `publications.find`.
_PUBLISHED = """
WITH RECURSIVE publication AS (
    SELECT oid, xmin::text AS written, puballtables, pubviaroot FROM pg_publication WHERE pubname = ANY (%s)
),
line AS (  -- every table, and upwards what it is a partition of
    SELECT c.oid AS leaf, c.relkind, c.oid, 0 AS height
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL
    SELECT l.leaf, l.relkind, i.inhparent, l.height + 1
    FROM line l JOIN pg_class c ON c.oid = l.oid AND c.relispartition JOIN pg_inherits i ON i.inhrelid = l.oid
),
member AS (
    SELECT p.oid AS publication, p.pubviaroot, l.leaf, l.relkind, l.oid, l.height,
        json_build_array(p.oid::bigint, p.written, r.oid::bigint, s.oid::bigint)::text AS rows
    FROM publication p CROSS JOIN line l JOIN pg_class c ON c.oid = l.oid
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = l.oid
    LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
    WHERE p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL
),
named AS (  -- by the uppermost table that is a member, or each by itself with all that make it one
    (SELECT DISTINCT ON (publication, leaf) oid, rows FROM member WHERE pubviaroot
     ORDER BY publication, leaf, height DESC)
    UNION
    SELECT leaf, rows FROM member WHERE NOT pubviaroot AND relkind = 'r'
)
SELECT n.nspname::text, c.relname::text, rn.nspname::text, r.relname::text,
    '[' || string_agg(m.rows, ',' ORDER BY m.rows) || ']'
FROM named m JOIN pg_class c ON c.oid = m.oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace
GROUP BY 1, 2, 3, 4
"""
