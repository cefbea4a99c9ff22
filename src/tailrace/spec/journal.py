"""The journal's part of a pipeline document: whether there are dead letters, and how many."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import KIB, ByteSize, Model
from tailrace.control.journal import JournalBounds, Overflow


class DeadLetters(Model):
    """How many dead letters a pipeline keeps, and for how long."""

    max_entries: Annotated[
        int, Field(ge=1, description="Letters that something is left to do about, at most, over all sinks.")
    ] = 10_000
    max_age_secs: Annotated[
        int,
        Field(ge=0, description="Seconds that a letter is kept; then it goes, counted as `expired`. `0`: for ever."),
    ] = 604_800
    overflow_policy: Annotated[
        Overflow,
        Field(
            description="What follows where there is no room: the oldest letters go, counted as `evicted` "
            "(`drop_oldest`); the sink stops with `dlq.overflow`, and its batch is not committed (`reject`); or the "
            "sink waits with `dlq.full` until there is room, and goes beyond `max_entries` by the letters of one batch "
            "at the most (`block`)."
        ),
    ] = "drop_oldest"
    hold_key: Annotated[
        bool,
        Field(
            description="Whether later changes of a key with an open letter become letters too (`held`), so that a "
            "replay delivers them in order. Not together with `drop_oldest`."
        ),
    ] = False

    @model_validator(mode="after")
    def _keeps_what_it_holds(self) -> DeadLetters:
        if self.hold_key and self.overflow_policy == "drop_oldest":
            context = {"hint": "use overflow_policy: block, or reject"}
            message = "hold_key and drop_oldest exclude each other: the letter that holds a key would go first"
            raise PydanticCustomError("config.invalid_value", message, context)
        return self


class JournalSettings(Model):
    """Where changes go that a sink's target refuses, or that a processor fails for: `tailrace dlq` works on them."""

    enabled: Annotated[bool, Field(description="Whether the pipeline has dead letters.")] = False
    max_event_bytes: Annotated[
        ByteSize,
        Field(
            ge=1,
            description="Bytes of a change and its record that a letter keeps. Of a larger one the values are left "
            "out; it is replayed from the log, as long as that has it.",
        ),
    ] = 256 * KIB
    dlq: Annotated[DeadLetters, Field(description="The bounds.")] = DeadLetters()

    @property
    def bounds(self) -> JournalBounds:
        return JournalBounds(self.dlq.max_entries, self.dlq.max_age_secs, self.dlq.overflow_policy)
