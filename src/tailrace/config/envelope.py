"""The shapes a record can have. How each is rendered is the business of `tailrace.render`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tailrace.config.model import Model


class NativeEnvelope(Model):
    """`before`, `after`, `source`, `op`, `ts_ms` and the ids, as one flat JSON object."""

    type: Annotated[Literal["native"], Field(description="The change itself, with nothing around it.")] = "native"


class DebeziumEnvelope(Model):
    """`{"schema":null,"payload":…}`, as Debezium writes it without schemas."""

    type: Annotated[Literal["debezium"], Field(description="What consumers of Debezium's JSON expect.")] = "debezium"


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


Envelope = Annotated[NativeEnvelope | DebeziumEnvelope | CloudEventsEnvelope, Field(discriminator="type")]
"""Shape of each record, chosen by `type`."""
