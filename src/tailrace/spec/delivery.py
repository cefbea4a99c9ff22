"""When a pipeline counts as having delivered, and what waits for that."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model


class CommitPolicy(Model):
    """Which sinks must have a change before the pipeline counts as having delivered it. The log keeps every change
    until then, even beyond its `retention`; a sink that is not waited for stops with `log.expired` where the log no
    longer has what it lacks."""

    mode: Annotated[
        Literal["all", "required", "quorum"],
        Field(
            description="`all`: every sink. `required`: every sink that is `required`. `quorum`: so many of those, "
            "whichever they are."
        ),
    ] = "required"
    quorum: Annotated[
        int | None, Field(ge=1, description="With `mode: quorum`: how many of the required sinks.", examples=[2])
    ] = None
    ack: Annotated[
        Literal["log", "sinks"],
        Field(
            description="When the source is told that a change is safe, so that it may forget it. `log`: once the "
            "change log has it. `sinks`: once the pipeline has delivered it too; until then a slot of PostgreSQL keeps "
            "the WAL."
        ),
    ] = "log"

    @model_validator(mode="after")
    def _has_its_quorum(self) -> Self:
        if (self.mode == "quorum") != (self.quorum is not None):
            hint = "give both `mode: quorum` and `quorum: N`, or neither"
            raise PydanticCustomError("config.invalid_value", "a quorum is a mode and a number", {"hint": hint})
        return self
