"""Outbox: messages that an application wrote into tables, or into the database's log, as records of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PrivateAttr, field_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Template
from tailrace.contracts import BatchProcessor, OutboxNames, Place, Provenance, Step, Trait
from tailrace.processors.outbox.step import OutboxStep
from tailrace.processors.tables import TablePattern, TablePatterns
from tailrace.schema import TableSchema

Name = Annotated[str, Field(min_length=1)]
OWN_HEADERS = ("df-event-id", "df-aggregate-type", "df-aggregate-id", "df-event-type", "df-source-kind")


class OutboxColumns(Model):
    """The columns of outbox tables, or the members of messages, by what they hold."""

    payload: Annotated[Name, Field(description="The message: a JSON object, or a text that is one.")] = "payload"
    aggregate_type: Annotated[Name, Field(description="What the message is about.")] = "aggregate_type"
    aggregate_id: Annotated[Name, Field(description="Which one; the record's key.")] = "aggregate_id"
    event_type: Annotated[Name, Field(description="What happened.")] = "event_type"
    topic: Annotated[Name, Field(description="The topic, where `topic` cannot be filled.")] = "topic"
    event_id: Annotated[Name, Field(description="The message's own id.")] = "id"


class OutboxProcessor(BatchProcessor):
    """Makes messages of inserts into outbox tables, of their snapshots' rows, and of logical messages.

    `after` becomes the payload, `before` null, the operation of a logical message a create; `route` has the topic, the
    key and the headers `df-event-id`, `df-aggregate-type`, `df-aggregate-id`, `df-event-type` and
    `df-source-kind: outbox`. A header whose value is missing, NULL, an object or a list is left out. Without a column
    of the payload the rest of the row is the payload (what is in none of the other columns), but for `strict`. All else
    that happens to an outbox table is dropped, with the reason `non_insert`; so are messages whose payload is NULL
    (`null_payload`) or no JSON object (`non_object`). Other changes pass as they are.
    """

    tables: Annotated[
        tuple[TablePattern, ...],
        Field(
            description="Outbox tables, by patterns such as `public.outbox`. Absent, like `prefixes`: those that the "
            "source's `outbox` names.",
            examples=[["public.outbox"]],
        ),
    ] = ()
    prefixes: Annotated[
        tuple[Name, ...],
        Field(
            description="Prefixes of logical messages; `*` stands for any characters. Absent, like `tables`: those "
            "that the source's `outbox` names.",
            examples=[["outbox", "mail.*"]],
        ),
    ] = ()
    topic: Annotated[
        Template | None,
        Field(
            description="Topic of the record, over the row as it was written. Where it cannot be filled, or is empty: "
            "what `columns.topic` holds, then `default_topic`, then what the sink says.",
            examples=["${after.aggregate_type}.events"],
        ),
    ] = None
    default_topic: Annotated[Name | None, Field(description="Topic of records that have no other.")] = None
    key: Annotated[
        Template | None,
        Field(
            description="Key of the record, over the row as it was written. Absent, or where it cannot be filled: what "
            "`columns.aggregate_id` holds.",
            examples=["${after.tenant}-${after.aggregate_id}"],
        ),
    ] = None
    columns: Annotated[OutboxColumns, Field(description="What the columns are called.")] = OutboxColumns()
    additional_headers: Annotated[
        dict[Name, Name],
        Field(description="More headers of the record: from their name to a column.", examples=[{"trace": "trace_id"}]),
    ] = Field(default_factory=dict)
    raw_payload: Annotated[
        bool, Field(description="The record's value is the payload alone, whatever the sink's envelope.")
    ] = False
    strict: Annotated[
        bool,
        Field(
            description="A message without a topic, payload, aggregate type, aggregate id or event type, or whose "
            "payload is no JSON object, stops the sink."
        ),
    ] = False

    _of_source: OutboxNames = PrivateAttr(default=OutboxNames())

    @field_validator("additional_headers")
    @classmethod
    def _not_our_own(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if name in OWN_HEADERS:
                context = {"name": name, "hint": "use another name"}
                raise PydanticCustomError("config.invalid_value", "the header '{name}' is there already", context)
        return headers

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key"})

    def of_source(self, source: Provenance) -> OutboxProcessor:
        if self.tables or self.prefixes:
            return self
        if source.outbox == OutboxNames():
            hint = "add `tables` or `prefixes`, or `outbox` to the source's configuration"
            message = "nobody says which tables or messages '{id}' is about"
            raise PydanticCustomError("config.invalid_value", message, {"id": self.id, "hint": hint})
        made = self.model_copy()
        made._of_source = source.outbox
        return made

    def names(self) -> OutboxNames:
        """Which tables and messages it is about."""
        own = OutboxNames(self.tables, self.prefixes)
        return self._of_source if own == OutboxNames() else own

    def by_tag(self) -> bool:
        """Whether what the source tagged is a message, whatever its name: a partition of an outbox table has one of its
        own."""
        return not self.tables and not self.prefixes

    def shape(self, table: TableSchema) -> TableSchema | None:
        names = self.names()
        of_outbox = TablePatterns(names.tables).fit(table.database, table.schema, table.table)
        return None if of_outbox or names == OutboxNames() else table

    def breaks_mirror(self) -> str | None:
        return "what it makes are messages, no rows of a table"

    def open(self, place: Place) -> Step:
        return OutboxStep(self, place)
