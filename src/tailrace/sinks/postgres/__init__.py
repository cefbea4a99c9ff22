"""PostgreSQL as a sink: events as rows of one table, or tables that equal the source's. `mode` says which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tailrace.config import Dsn, Duration, Model, Secret, Template, Tls, libpq
from tailrace.contracts import Check, Delivery, Gather, RecordSink, Sink, Span, Subject
from tailrace.schema import TableSchema
from tailrace.sinks.tables import Log, TableSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.sinks.postgres.connection import Address
    from tailrace.sinks.postgres.events import EventTable, EventWriter
    from tailrace.sinks.postgres.keeper import MirrorKeeper
    from tailrace.sinks.postgres.ledger import Ledger
    from tailrace.sinks.postgres.mirror import PostgresTable

MODES = ("mirror", "events")
NAME_BYTES = 63
_HOLES = re.compile(r"\{(\w+)\}")
_KNOWN = ("source", "database", "schema", "table")


def _known_mode(value: Any) -> Any:
    if isinstance(value, str) and value not in MODES:
        message = f"there is no mode '{value}'"
        hint = "use one of: " + ", ".join(MODES)
        raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
    return value


def _known_holes(template: str) -> str:
    for hole in _HOLES.findall(template):
        if hole not in _KNOWN:
            hint = "use " + ", ".join(f"{{{name}}}" for name in _KNOWN)
            message = f"there is no '{{{hole}}}' in the name of a table"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
    return template


NameTemplate = Annotated[str, Field(min_length=1), AfterValidator(_known_holes)]


class PostgresSink(Sink):
    """Rows in a PostgreSQL database (15 or newer), exactly once."""

    mode: Annotated[
        Any,
        BeforeValidator(_known_mode),
        Field(description="`events`: a row for each change, in one table. `mirror`: tables that equal the source's."),
    ]
    dsn: Annotated[
        Dsn,
        Field(
            description="Connection string, as a URL or key=value pairs; everything libpq knows may stand in it.",
            examples=["postgresql://writer:secret@db.example.com:5432/copy"],
        ),
    ]
    password: Annotated[
        Secret | None,
        Field(description="The password, where it should not stand in the DSN.", examples=["secret"]),
    ] = None
    tls: Annotated[Tls | None, Field(description="TLS options. Absent: what the DSN says.")] = None
    state_schema: Annotated[
        str,
        Field(
            min_length=1,
            max_length=NAME_BYTES,
            description="Schema of the sink's own tables, which say how far it is. Made when missing.",
        ),
    ] = "_tailrace"
    auto_create_table: Annotated[bool, Field(description="Whether missing tables and schemas are made.")] = True
    connect_timeout: Annotated[
        Duration, Field(ge=timedelta(seconds=1), description="How long a connection may take.")
    ] = timedelta(seconds=10)
    lock_timeout: Annotated[
        Duration,
        Field(
            ge=timedelta(milliseconds=1),
            description="How long the server may wait for a lock that others have. Then the batch is tried again.",
        ),
    ] = timedelta(seconds=10)
    statement_timeout: Annotated[
        Duration,
        Field(ge=timedelta(seconds=1), description="How long one statement may take. Then the batch is tried again."),
    ] = timedelta(seconds=60)

    @classmethod
    def alternatives(cls) -> tuple[type[Model], ...]:
        return (PostgresMirror, PostgresEvents) if cls is PostgresSink else (cls,)

    def address(self) -> Address:
        """Where to connect to, with what, and how long to wait."""
        import psycopg

        from tailrace.sinks.postgres.connection import Address, Patience, bad_dsn

        seconds = (each.total_seconds() for each in (self.connect_timeout, self.lock_timeout, self.statement_timeout))
        try:
            return Address(libpq.conninfo(self.dsn, self.password, self.tls), Patience(*seconds), self.id)
        except psycopg.ProgrammingError as error:
            raise bad_dsn(error, self.id) from None

    def ledger(self, delivery: Delivery) -> Ledger:
        """Where the marks are."""
        from tailrace.sinks.postgres.ledger import Ledger

        return Ledger(self.state_schema, delivery.pipeline, self.id)

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        from tailrace.sinks.postgres.check import check_database

        yield from check_database(subject, self.address, self.ledger(delivery))


class PostgresEvents(PostgresSink, RecordSink):
    """One row per change in one table: `event_id` (the primary key), `event_key`, `event_value` (the envelope),
    `source_topic`, `source_partition` and `source_offset`. The table is made when it is missing.

    Exactly once: tasks stage a batch, and one transaction brings all of it into the table and moves the mark, which
    stands in the database too. A batch that is repeated after a crash is absorbed by the mark, also where its rows were
    deleted meanwhile; rows that the table already has, by `event_id`, stay as they are. Readers see whole batches.
    """

    mode: Annotated[
        Literal["events"],
        BeforeValidator(_known_mode),
        Field(description="A row for each change, in one table."),
    ]
    schema_name: Annotated[
        str, Field(min_length=1, max_length=NAME_BYTES, description="The schema of the table.", examples=["cdc"])
    ] = "public"
    table_name: Annotated[
        str, Field(min_length=1, max_length=NAME_BYTES, description="The table.", examples=["events"])
    ]
    topic: Annotated[
        Template,
        Field(min_length=1, description="The `source_topic` of each row.", examples=["shop.${source.table}"]),
    ] = "${source.schema}.${source.table}"
    key: Annotated[
        Template | None,
        Field(
            description="The `event_key` of each row. Absent: the row's primary key, as JSON text.",
            examples=["${after.customer_id}"],
        ),
    ] = None

    def columns(self) -> tuple[str, ...]:
        return ("event_id", "seq", "lane", "schema", "table", "key", "position")

    def routes(self) -> dict[str, str]:
        return {"topic": self.topic} if self.key is None else {"topic": self.topic, "event_key": self.key}

    def routed(self) -> dict[str, str]:
        return {"topic": "topic", "event_key": "key"}

    def prepare(self, delivery: Delivery) -> None:
        self._table(delivery).prepare()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        return self._table(delivery).mark(log_id)

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        return self._table(delivery).present(letters)

    def open(self, delivery: Delivery, span: Span, task: int) -> EventWriter:
        from tailrace.sinks.postgres.events import EventWriter

        return EventWriter(self._table(delivery))

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        self._table(delivery).commit(span, receipts)

    def _table(self, delivery: Delivery) -> EventTable:
        from tailrace.sinks.postgres.events import EventTable

        ledger = self.ledger(delivery)
        return EventTable(self.address(), ledger, self.schema_name, self.table_name, self.auto_create_table)


Evolution = Literal["adapt", "halt"]


class PostgresMirror(PostgresSink, TableSink):
    """Tables that equal the source's: rows are inserted, updated and deleted, tables truncated, and columns follow.

    Exactly once: one transaction brings a batch into all of its tables and moves the marks, one for the sink and one
    for each table, which stand in the database too. A batch that is repeated after a crash is absorbed by the mark.
    Inside the transaction each table has a savepoint: one that cannot go on halts alone, and catches up at the next
    start.
    """

    mode: Annotated[
        Literal["mirror"],
        BeforeValidator(_known_mode),
        Field(description="Tables that equal the source's."),
    ]
    schema_name: Annotated[
        NameTemplate,
        Field(
            description="Schema of a table, with the holes `{source}`, `{database}`, `{schema}`, `{table}`.",
            examples=["copy_of_{schema}"],
        ),
    ] = "{schema}"
    table_name: Annotated[
        NameTemplate, Field(description="Name of a table, with the same holes.", examples=["{source}_{table}"])
    ] = "{table}"
    commit_interval: Annotated[
        Duration, Field(description="How long changes may wait for others: fewer transactions do the same work.")
    ] = timedelta(milliseconds=200)
    without_key: Annotated[
        Literal["append", "halt"],
        Field(description="A table without a key: `append` its rows as long as they are only inserted, or `halt` it."),
    ] = "append"
    evolution: Annotated[
        Evolution,
        Field(
            description="What to do when a value does not fit its column, or a column's type changes beyond widening: "
            "`adapt` makes the column text, `halt` stops this table alone. A table that the sink did not make halts."
        ),
    ] = "adapt"
    dropped_columns: Annotated[
        Literal["keep", "drop"],
        Field(
            description="What becomes of a column that the source dropped: it stays, NULL in new rows and renamed to "
            "`NAME__dropped` once the source has another column of its name, or goes too."
        ),
    ] = "keep"
    evolutions: Annotated[
        dict[str, Evolution],
        Field(
            description="`evolution` of some tables, by a pattern; where several fit, the first counts.",
            examples=[{"public.orders": "halt"}],
        ),
    ] = Field(default_factory=dict)

    def mirrors(self) -> bool:
        return True

    def columns(self) -> tuple[str, ...]:
        return ("seq", "op", "schema", "table", "key", "before", "after", "unchanged", "ts_us", "schema_id", "headers")

    def gather(self) -> Gather:
        return Gather(self.commit_interval.total_seconds())

    def keeper(self, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> MirrorKeeper:
        from tailrace.sinks.postgres.keeper import MirrorKeeper

        return MirrorKeeper(self, delivery, log, state_dir)

    def mirror(
        self, spark: SparkSession, schema: TableSchema, delivery: Delivery, log_id: str, state_dir: Path
    ) -> PostgresTable:
        from tailrace.sinks.lake.target import lake_session
        from tailrace.sinks.postgres.mirror import PostgresTable

        return PostgresTable(self, lake_session(spark, {}), schema, delivery, log_id)

    def evolution_of(self, table: TableSchema) -> Evolution:
        found = (each for pattern, each in self.evolutions.items() if fnmatchcase(table.name, pattern))
        return next(found, self.evolution)

    def place_of(self, table: TableSchema, delivery: Delivery) -> tuple[str, str]:
        """(schema, name) of the table that keeps a table of the source."""
        parts = {
            "source": delivery.source,
            "database": table.database,
            "schema": table.schema,
            "table": table.table,
        }
        schema, name = (_HOLES.sub(lambda hole: parts[hole[1]], each) for each in (self.schema_name, self.table_name))
        return schema, name
