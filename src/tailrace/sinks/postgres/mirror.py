"""A mirrored table as `verify` looks into it: its rows and its mark as one exported snapshot shows them.

A connection keeps the snapshot, and a lock that lets others write but not truncate or alter the table. Tasks read rows
in that snapshot, as the texts that the log would have for them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.csv as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from tailrace.contracts import Delivery, Extent
from tailrace.passage import carried
from tailrace.schema import TableSchema
from tailrace.sinks.postgres import columns
from tailrace.sinks.postgres.connection import Address, Session, refused
from tailrace.sinks.postgres.ledger import Entry
from tailrace.sinks.postgres.shape import Table
from tailrace.sinks.tables import Mirror, Pin

if TYPE_CHECKING:
    from tailrace.sinks.postgres import PostgresMirror

LONGEST_S = 3600.0
"""How long one read may take: all of a table, where its keys have no ranges."""
LINES = 10_000
_WHOLE = ("smallint", "integer", "bigint")
_PLAIN = (*_WHOLE, "text", "uuid", "boolean", "date")
"""Types of key columns whose texts PostgreSQL reads as they are compared."""


class PostgresTable(Mirror):
    def __init__(
        self, sink: PostgresMirror, spark: SparkSession, schema: TableSchema, delivery: Delivery, log_id: str
    ) -> None:
        self._spark, self._schema, self._log_id = spark, schema, log_id
        self._ledger, self._place = sink.ledger(delivery), sink.place_of(schema, delivery)
        address = sink.address()
        self._address = replace(address, patience=replace(address.patience, statement_s=LONGEST_S))

    @property
    def session(self) -> SparkSession:
        return self._spark

    def halted(self) -> str:
        session = self._address.connect()
        try:
            entries = self._ledger.entries(session, self._log_id)
        except psycopg.Error as error:
            raise refused(error, "cannot read the sink's marks", self._ledger.sink) from None
        finally:
            session.close()
        return entries.get(self._schema.name, Entry()).reason

    def state(self) -> object:
        session = self._address.connect()
        try:
            return self._ledger.mark(session, self._log_id)
        finally:
            session.close()

    def types_of(self, schema: TableSchema) -> Mapping[str, DataType]:
        wanted = {each.name: columns.type_of(each.kind, key=each.name in schema.key) for each in schema.columns}
        return {name: _spark_type(kind) for name, kind in wanted.items()}

    def pinned(self) -> Pin | None:
        session = self._address.connect()
        try:
            return self._pinned(session)
        except psycopg.Error as error:
            session.close()
            raise refused(error, "cannot read the mirror", self._ledger.sink) from None
        except BaseException:
            session.close()
            raise

    def _pinned(self, session: Session) -> Pin | None:
        session.execute(sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        table = Table(session, *self._place)
        # Before the snapshot: what a truncate or another shape left is nothing that an older snapshot could read.
        if not self._locked(session, table):
            mark = self._ledger.mark(session, self._log_id)
            session.close()
            return Pin(mark or 0, None)
        [(snapshot,)] = session.rows(sql.SQL("SELECT pg_export_snapshot()"))
        mark = self._ledger.mark(session, self._log_id)
        known = self._ledger.mirrored(session, *self._place)
        if mark is None or known is None:
            session.close()
            return Pin(mark or 0, None)
        present, names = table.columns(), [each.name for each in known.version.columns]
        kinds = {name: present[name] for name in names if name in present}
        reader = SnapshotReader(self._address, snapshot, self._place, kinds, known.version.key)
        types = {name: _spark_type(kind) for name, kind in kinds.items()}
        return Pin(mark, known.version, types, lambda extents: reader.frame(self._spark, extents), session.close)

    def _locked(self, session: Session, table: Table) -> bool:
        """Whether there is a table, which then stays as it is."""
        try:
            session.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table.identifier))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            session.rollback()
            return False
        return True


def _spark_type(kind: str) -> DataType:
    """Whole numbers can be compared in ranges; all else is compared as text."""
    return LongType() if kind in _WHOLE else StringType()


@dataclass(frozen=True)
class SnapshotReader:
    """Reads rows of a table in a snapshot that another session exported; picklable. `kinds`: column → its type."""

    address: Address
    snapshot: str
    place: tuple[str, str]
    kinds: Mapping[str, str]
    key: tuple[str, ...]

    def frame(self, spark: SparkSession, extents: Sequence[Extent]) -> DataFrame:
        """The rows of the extents, each of them a task's; all rows where ranges or keys cannot be told by SQL."""
        kinds = {self.kinds.get(name) for name in self.key}
        told = kinds <= set(_PLAIN) if all(each.keys for each in extents) else kinds <= set(_WHOLE)
        wanted = [_text(each) for each in extents] if extents and told and self.key else [_text(Extent())]
        schema = StructType([StructField(name, _spark_type(kind)) for name, kind in self.kinds.items()])
        named = spark.createDataFrame([(each,) for each in wanted], "extent string")
        return named.repartition(len(wanted)).mapInArrow(self, schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with carried():
            for text in (each.as_py() for batch in batches for each in batch.column("extent")):
                yield from self._read(Extent.from_dict(json.loads(text)))

    def _read(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        session = self.address.connect()
        try:
            session.execute(sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot)))
            statement = sql.SQL("COPY (SELECT {} FROM {} t {}) TO STDOUT (FORMAT csv)").format(
                sql.SQL(", ").join(
                    columns.spelled(sql.Identifier("t", name), kind) for name, kind in self.kinds.items()
                ),
                sql.Identifier(*self.place),
                self._where(extent),
            )
            with session.copy(statement) as copy:
                rows = iter(copy)
                while lines := list(islice(rows, LINES)):
                    yield from self._parsed(b"".join(bytes(each) for each in lines))
        finally:
            session.close()

    def _parsed(self, lines: bytes) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([(name, pa.int64() if kind in _WHOLE else pa.string()) for name, kind in self.kinds.items()])
        found = pc.read_csv(
            io.BytesIO(lines),
            pc.ReadOptions(column_names=schema.names, block_size=max(len(lines), 1) + 1),
            pc.ParseOptions(newlines_in_values=True),
            pc.ConvertOptions(
                column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        yield from found.to_batches()

    def _where(self, extent: Extent) -> sql.Composable:
        if extent.keys:
            declared = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(self.kinds[name])) for name in self.key
            )
            same = sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(sql.Identifier("t", name), sql.Identifier("k", name)) for name in self.key
            )
            listed = sql.Literal(f"[{','.join(extent.keys)}]")
            query = "JOIN json_to_recordset({}) AS k({}) ON {}"
            return sql.SQL(query).format(listed, declared, same)
        row = sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier("t", name) for name in self.key))
        bounds = [(">", extent.low), ("<=", extent.high)]
        tests = [
            sql.SQL(f"{{}} {sign} ({{}})").format(row, sql.SQL(", ").join(map(sql.Literal, bound)))
            for sign, bound in bounds
            if bound is not None
        ]
        return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(tests)) if tests else sql.SQL("")


def _text(extent: Extent) -> str:
    return json.dumps({**Extent().__dict__, "low": extent.low, "high": extent.high, "keys": extent.keys})
