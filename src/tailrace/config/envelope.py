"""The shapes a record can have. How each is rendered is the business of `tailrace.render`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config.model import Model


class NativeEnvelope(Model):
    """`before`, `after`, `source`, `op`, `ts_ms` and the ids, as one flat JSON object."""

    type: Annotated[Literal["native"], Field(description="The change itself, with nothing around it.")] = "native"


class DebeziumEnvelope(Model):
    """What consumers of Debezium's JSON expect: its wrapping alone, or its values, schemas and tombstones too."""

    type: Annotated[Literal["debezium"], Field(description="What consumers of Debezium's JSON expect.")] = "debezium"
    values: Annotated[
        Literal["native", "debezium"],
        Field(
            description="`native`: the payload is the `native` envelope. `debezium`: columns, `source`, times and "
            "members are those that Debezium's own connector writes by default."
        ),
    ] = "native"
    schemas: Annotated[
        bool,
        Field(
            description="Whether records and keys carry their Connect schema, as with `schemas.enable=true`. Needs "
            "`values: debezium` and the wrapper."
        ),
    ] = False
    tombstones: Annotated[
        bool,
        Field(
            description="Whether a record without a value follows each delete, with the same key, so that a compacted "
            "topic forgets the row. Only for sinks that have such records."
        ),
    ] = False
    wrapper: Annotated[
        bool,
        Field(
            description='Whether the payload stands in `{"schema":…,"payload":…}`. `false`: the payload alone, as '
            "Kafka's JsonConverter writes it with `schemas.enable=false`."
        ),
    ] = True

    @model_validator(mode="after")
    def _has_a_place_for_schemas(self) -> DebeziumEnvelope:
        if self.schemas and (not self.wrapper or self.values != "debezium"):
            hint = "use values: debezium and wrapper: true, or leave schemas out"
            message = "schemas describe Debezium's values, and stand in the wrapper"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self


class CloudEventsEnvelope(Model):
    """A CloudEvents 1.0 JSON event whose `data` holds the row images."""

    type: Annotated[Literal["cloudevents"], Field(description="CloudEvents 1.0, structured JSON.")] = "cloudevents"
    type_prefix: Annotated[
        str,
        Field(
            min_length=1,
            description="Start of the event's `type`; `.created`, `.updated`, `.deleted` … follows.",
            examples=["com.example.shop"],
        ),
    ]


class HeliosEnvelope(Model):
    """An event of HeliosDB CDC: operation words, and images as base64 of their JSON."""

    type: Annotated[Literal["helios"], Field(description="What consumers of HeliosDB's events expect.")] = "helios"


Envelope = Annotated[
    NativeEnvelope | DebeziumEnvelope | CloudEventsEnvelope | HeliosEnvelope, Field(discriminator="type")
]
"""Shape of each record, chosen by `type`."""
