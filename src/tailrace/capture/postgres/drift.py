"""Looks at the catalog for what the stream does not tell: DDL without rows, rewrites, new tables, partitions.

An observation counts only once the stream has passed the position it was made at: DDL excludes writers, so every row
of the versions before lies before that position, and the log never has an older row behind a newer version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tailrace.backoff import Backoff
from tailrace.capture.postgres import publications
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.memory import Memory
from tailrace.capture.postgres.messages import Relation, RelationColumn, lsn_number, lsn_text
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.publication_watch import ALTERED, PublicationWatch
from tailrace.capture.postgres.relations import Relations
from tailrace.contracts import Need
from tailrace.control.sightings import Name, Sightings
from tailrace.errors import SetupError, SourceError
from tailrace.schema import TableSchema

REMADE = "dropped and made anew"
LOCKED_S, LOCKED_MAX_S = 5.0, 60.0
"""How long to wait before a publication that somebody has locked is tried again, at first and at most."""


@dataclass(frozen=True)
class RowFile:
    """Where rows of a table are: the table itself, or a partition.

    `file` changes with every rewrite, `touched` with every change of a column, also one that keeps its type; VACUUM
    FULL, CLUSTER and TRUNCATE change the file only. `born`: it was made as a partition, hence empty. `writer`: the
    transaction that wrote its entry of the catalog, and with it the file's name, last.
    """

    file: int
    touched: str
    born: bool
    writer: int


@dataclass(frozen=True)
class Sighting:
    """A captured table as the catalog has it. `shape`: all that its version depends on. `named`: the transaction that
    gave it this name, schema or owner, and the owner."""

    relation: Relation
    shape: str
    parts: dict[str, RowFile]
    named: list[str]

    def text(self) -> str:
        """What is remembered of it."""
        parts = {oid: [part.file, part.touched] for oid, part in self.parts.items()}
        return json.dumps([self.relation.oid, self.shape, parts, self.named])


@dataclass(frozen=True)
class Remembered:
    """What was seen of a table last. Without a shape: that it was not captured then, and lived on under another name
    or outside the patterns."""

    oid: int
    shape: str | None
    parts: dict[str, list[Any]]
    named: list[str]

    @classmethod
    def parse(cls, text: str) -> Remembered:
        oid, shape, parts, *named = json.loads(text)
        return cls(oid, shape, parts, named[0] if named else [])

    def away(self) -> str:
        """What is remembered of it while it is not captured."""
        return json.dumps([self.oid, None, {}, []])


@dataclass(frozen=True)
class Observation:
    """The captured tables at a position and how they are published, the tables that are gone, and the versions the log
    had then. `away`: tables that were captured, are there and are not captured now, each with what is remembered of
    it."""

    lsn: int
    xmin: int
    xmax: int
    tables: dict[Name, Sighting]
    published: dict[Name, str]
    gone: tuple[TableSchema, ...]
    versions: dict[Name, int]
    away: dict[Name, str]


@dataclass(frozen=True)
class NextVersion:
    """A table's next version; without `before` its first."""

    before: TableSchema | None
    after: TableSchema


class Drift:
    """Compares the catalog with what was seen before, in this process or an earlier one."""

    def __init__(
        self,
        catalog: PostgresCatalog,
        publication: str,
        patterns: TablePatterns,
        sightings: Sightings | None,
        published: PublicationWatch,
        *,
        first: bool,
        keep_detached: bool,
    ) -> None:
        """`first`: the log is new, and what was seen for another log does not matter. `keep_detached`: rows of a
        partition that is no longer one stay in the sinks."""
        self._catalog, self._publication, self._patterns = catalog, publication, patterns
        self._published, self._keep_detached = published, keep_detached
        self._memory = Memory(sightings, first=first)
        self._compares = bool(self._memory.seen)
        self._locked, self._next_join = Backoff(LOCKED_S, LOCKED_MAX_S, 0.1), 0.0
        self._held: list[tuple[Need, int]] = []
        self._open: set[Name] = set()
        self._warnings: list[str] = []

    @property
    def warnings(self) -> list[str]:
        return self._warnings + self._published.warnings

    @property
    def waits(self) -> bool:
        """Whether a new table waits for the transactions that were open when it joined."""
        return bool(self._held)

    def observe(self, relations: Relations) -> Observation:
        """Let new tables join, then look."""
        published = self._published.look(mendable=self._join())
        [(xmin, xmax)] = self._catalog.rows(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        )
        tables = {name: sighting for name, sighting in self._tables().items() if self._patterns.match(name[0], name[1])}
        known = relations.tables()
        missing = [each for each in known if (each.schema, each.table) not in tables]
        gone = tuple(each for each in missing if not self._exists(each)) if missing else ()
        versions = {(each.schema, each.table): each.id for each in known}
        away = self._away(tables)
        lsn = lsn_number(self._catalog.rows(_POSITION)[0][0])  # after everything above was read
        return Observation(lsn, xmin, xmax, tables, published, gone, versions, away)

    def steps(self, seen: Observation, relations: Relations) -> list[NextVersion]:
        """The versions that the log does not have yet. Tables of which the stream has told more since are left for
        the next look."""
        since = lsn_text(seen.lsn - 1)  # no commit has an odd position
        found = [
            NextVersion(known, relations.drop(known, since)) for known in seen.gone if self._settled(known, relations)
        ]
        for name, sighting in seen.tables.items():
            known = relations.newest(*name)
            if known is not None and known.columns and seen.versions.get(name) != known.id:
                self._open.add(name)
                continue
            if known is not None and known.columns and self._shape(name) == sighting.shape and name not in self._open:
                continue
            self._open.discard(name)
            schema = relations.describe(sighting.relation, since)
            if known is None or schema.follows(known):
                found.append(NextVersion(known, relations.enter(schema)))
        return found

    def needs(self, seen: Observation, relations: Relations) -> list[Need]:
        """The tables whose rows the stream cannot tell. Remembers what was seen."""
        for need in self._unpublished(seen):
            self._hold(need, seen.xmax)
        told = relations.truncates(before=seen.xmin)
        found = [
            each for name, table in seen.tables.items() if (each := self._rewritten(name, table, told.get(name, ())))
        ]
        # A change of a transaction that was open when its table joined is in no publication.
        found += [need for need, xmax in self._held if xmax <= seen.xmin]
        self._held = [(need, xmax) for need, xmax in self._held if xmax > seen.xmin]
        self._memory.seen = seen.away | {name: sighting.text() for name, sighting in seen.tables.items()}
        self._compares = True
        return found

    def remember(self, pending: list[Need]) -> None:
        """Keep what was seen for the next process, but for tables whose snapshot is not requested yet."""
        busy = self._open | {need[:2] for need in [*pending, *(need for need, _ in self._held)]}
        self._memory.keep(busy)
        self._published.keep(busy)

    # -- looking ---------------------------------------------------------------------------------------------

    def _join(self) -> bool:
        """Tables that match a pattern by now are published, where the publications are ours, and what somebody altered
        in them is put back. Whether we can, now or once somebody gives a lock back."""
        publications.check_there(self._catalog, self._publication)
        if not self._catalog.publication_is_ours(self._publication):
            return False
        if time.monotonic() < self._next_join:
            return True
        tables = [each for each in self._catalog.tables() if self._patterns.match(each.schema, each.table)]
        try:
            publications.ensure(self._catalog, self._publication, tables)
        except (SetupError, SourceError) as error:
            return self._not_joined(error)
        self._warnings = []
        self._locked.reset()
        return True

    def _not_joined(self, error: SetupError | SourceError) -> bool:
        self._warnings = [f"the publication {self._publication} cannot be changed: {error.message}"]
        if isinstance(error, SetupError):
            return False
        if error.code == "source.locked":
            self._next_join = time.monotonic() + self._locked.next()
        elif error.code != "source.refused":  # a table may have gone while it was to join: the next look sees it
            raise error
        return True

    def _tables(self) -> dict[Name, Sighting]:
        names = list(publications.published_names(self._publication))
        return {(row[1], row[2]): _sighting(*row) for row in self._catalog.rows(_TABLES, names)}

    def _exists(self, table: TableSchema) -> bool:
        return bool(
            self._catalog.rows(
                "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
                table.schema,
                table.table,
            )
        )

    def _away(self, tables: dict[Name, Sighting]) -> dict[Name, str]:
        missing = {name: Remembered.parse(text) for name, text in self._memory.seen.items() if name not in tables}
        oids = [was.oid for was in missing.values()]
        there = self._catalog.rows("SELECT oid::bigint FROM pg_class WHERE oid = ANY (%s::oid[])", oids) if oids else []
        return {name: was.away() for name, was in missing.items() if (was.oid,) in there}

    # -- comparing -------------------------------------------------------------------------------------------

    @staticmethod
    def _settled(known: TableSchema, relations: Relations) -> bool:
        newest = relations.newest(known.schema, known.table)
        return newest is not None and newest.id == known.id

    def _was(self, name: Name) -> Remembered | None:
        text = self._memory.seen.get(name)
        return Remembered.parse(text) if text is not None else None

    def _shape(self, name: Name) -> str | None:
        was = self._was(name)
        return was.shape if was is not None else None

    def _unpublished(self, seen: Observation) -> list[Need]:
        """The tables that were not published all the time. The first need of a table counts: one that a look did not
        see, because somebody took it out of the publication, is not new."""
        tables = seen.tables.items() if self._compares else ()
        joined = [need for name, each in tables if (need := self._joined_since(name, each))]
        remade = [need for need in joined if need.reason == REMADE]
        altered = [Need(*name, ALTERED, whole=True) for name in self._published.altered(seen.published)]
        return remade + altered + joined

    def _hold(self, need: Need, xmax: int) -> None:
        if need[:2] not in [each[:2] for each, _ in self._held]:
            self._held.append((need, xmax))

    def _joined_since(self, name: Name, sighting: Sighting) -> Need | None:
        """Why a table that joined since the last look has rows that the stream did not tell of."""
        was = self._was(name)
        if was is None:
            return Need(*name, "new table")
        if was.oid != sighting.relation.oid:
            return Need(*name, "new table" if was.shape is None else REMADE)
        if was.shape is None or _left_and_returned(was, sighting):
            return Need(*name, "left and returned", whole=True)  # also deletes were missed
        if sighting.relation.columns and not json.loads(was.shape)[2]:
            return Need(*name, "first columns")  # before it had none, and there was nothing to read
        return None

    def _rewritten(self, name: Name, sighting: Sighting, truncates: Collection[int]) -> Need | None:
        """Why the rows of a table that was there before are no longer those the stream told of. `truncates`: the
        transactions with a truncate of the whole table in the stream."""
        was = self._was(name)
        if was is None or was.shape is None or was.oid != sighting.relation.oid:
            return None
        if not self._keep_detached:
            if any(oid not in sighting.parts for oid in was.parts):
                return Need(*name, "partition detached", whole=True)  # which reads attached ones too
            if any(_may_be_emptied(oid, part, was, truncates) for oid, part in sighting.parts.items()):
                return Need(*name, "partition rewritten or truncated", whole=True)
        if any(oid not in was.parts and not part.born for oid, part in sighting.parts.items()):
            return Need(*name, "partition attached")
        for oid, part in sighting.parts.items():
            if oid in was.parts and was.parts[oid][0] != part.file and was.parts[oid][1] != part.touched:
                return Need(*name, "rewritten")
        return None


def _left_and_returned(was: Remembered, sighting: Sighting) -> bool:
    """Whether it got another name or schema and this one back, between two looks: the catalog has its name written
    anew. Another owner is written there too, and says nothing."""
    return bool(was.named) and was.named[0] != sighting.named[0] and was.named[1] == sighting.named[1]


def _may_be_emptied(oid: str, part: RowFile, was: Remembered, truncates: Collection[int]) -> bool:
    """Whether a partition has another file than before, or than it was made with, and no truncate of the whole table
    gave it. PostgreSQL does not publish a partition's own truncate; VACUUM FULL leaves the same traces."""
    if int(oid) == was.oid:
        return False
    before = was.parts[oid][0] if oid in was.parts else int(oid) if part.born else part.file
    return bool(before != part.file) and part.writer not in truncates


def _sighting(
    oid: int,
    schema: str,
    table: str,
    identity: str,
    key: list[int] | None,
    columns: list[tuple[int, str, int, int, str]],
    parts: list[tuple[int, int, str, bool, int]] | None,
    named: list[str],
) -> Sighting:
    listed = tuple(
        RelationColumn(name, kind, modifier, identity == "f" or number in (key or ()), number)
        for number, name, kind, modifier, _ in columns or ()
    )
    relation = Relation(oid, schema, table, identity, listed)
    shape = json.dumps([identity, key, [list(column) for column in columns or ()]])
    return Sighting(relation, shape, {str(part[0]): RowFile(*part[1:]) for part in parts or ()}, named)


_POSITION = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text
"""

# Plain catalog tables only: functions such as pg_get_publication_tables wait for the locks of the user's own DDL.
_TABLES = """
WITH RECURSIVE publication AS (
    SELECT oid, puballtables, pubviaroot, coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false) AS generated
    FROM pg_publication p WHERE pubname = ANY (%s)
),
member AS (
    SELECT DISTINCT ON (c.oid) c.oid, n.nspname, c.relname, c.relreplident, c.reltype, r.prattrs, p.generated
    FROM publication p
    JOIN pg_class c ON c.relpersistence = 'p' AND NOT c.relispartition
        AND (c.relkind = 'r' OR c.relkind = 'p' AND p.pubviaroot)
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE p.puballtables OR r.prrelid IS NOT NULL OR EXISTS (
        SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
),
tree AS (
    SELECT oid AS root, oid, true AS born FROM member
    UNION ALL
    -- A partition that was made as one has its place two commands after its columns; attaching takes more, or another
    -- transaction. (A table attached and filled in the transaction that made it must not pass for empty.)
    SELECT t.root, i.inhrelid, a.xmin = i.xmin AND i.cmin::text::bigint - a.cmin::text::bigint <= 2
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
    JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attname = 'tableoid' AND a.attnum < 0
)
SELECT m.oid::bigint, m.nspname::text, m.relname::text, m.relreplident::text,
    (SELECT i.indkey::int2[] FROM pg_index i WHERE i.indrelid = m.oid AND i.indimmediate AND CASE m.relreplident
        WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END),
    (SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.xmin::text)
        ORDER BY a.attnum) FROM pg_attribute a
     WHERE a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped AND CASE
        WHEN m.prattrs IS NOT NULL THEN a.attnum = ANY (m.prattrs::int2[])
        ELSE a.attgenerated = '' OR a.attgenerated = 's' AND m.generated END),
    (SELECT json_agg(json_build_array(t.oid::bigint, c.relfilenode::bigint, (
            SELECT md5(string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum))
            FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0), t.born, c.xmin::text::bigint))
     FROM tree t JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'r' WHERE t.root = m.oid),
    -- The type of its rows has its name and schema, and nothing else that changes but the owner.
    (SELECT json_build_array(y.xmin::text, y.typowner::text) FROM pg_type y WHERE y.oid = m.reltype)
FROM member m
"""
