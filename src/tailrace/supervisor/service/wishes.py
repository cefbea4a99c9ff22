"""What shall become of pipelines, as the reconciler is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.errors import TailraceError
from tailrace.spec import Pipeline
from tailrace.supervisor.runtime import Generation

DesiredState = Literal["running", "paused", "stopped"]
"""`paused`: its source is read into the log, and nothing is delivered. `stopped`: neither."""


@dataclass(frozen=True)
class Wish:
    """A pipeline as it shall be. Whatever is of another `generation` ends before this one begins. `error`: why its
    document cannot be used now, so that there is no `pipeline`."""

    name: str
    generation: Generation
    desired: DesiredState
    pipeline: Pipeline | None = None
    error: TailraceError | None = None
