"""What a server answers, as its clients read it: what they need by name and, for whoever wants all of it, the rest as
it came. So a client goes on working with a server that is newer than itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Desired = Literal["running", "paused", "stopped"]


class Told(BaseModel):
    """The ground of all answers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def as_json(self) -> dict[str, Any]:
        """All that the server told."""
        return self.model_dump(mode="json")


class Fault(Told):
    """An error as a part of an answer."""

    code: str = ""
    message: str = ""
    hint: str = ""


class Matter(Fault):
    """What is the matter with a part of a pipeline, and the way out."""

    part: str
    state: str


class Source(Told):
    id: str
    state: str
    rows: int = 0
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    log_end: int | None = None
    held_bytes: int | None = None
    warnings: tuple[str, ...] = ()
    error: Fault | None = None


class Sink(Told):
    id: str
    type: str
    state: str
    offset: int | None = None
    lag_rows: int | None = None
    lag_seconds: float | None = None
    batches: int = 0
    rows: int = 0
    warnings: tuple[str, ...] = ()
    error: Fault | None = None


class TableFigures(Told):
    sink: str
    table: str
    rows: int
    last_change_at: float | None = None


class Snapshot(Told):
    table: str
    state: str
    rows: int
    estimate: int | None = None
    error: Fault | None = None


class Checkpoint(Told):
    sink_id: str
    position: int | None = None
    age_seconds: float | None = None


class Figures(Told):
    """A pipeline in figures."""

    lag_seconds: float | None = None
    dlq_entries: int | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    committed: int | None = None
    source: Source | None = None
    sinks: tuple[Sink, ...] = ()
    tables: tuple[TableFigures, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()


class Spec(Told):
    """A document, as it was written, without its secrets."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: dict[str, Any] = Field(default_factory=dict)


class Pipeline(Told):
    """A pipeline. `current`: the status is of the newest version and of what is desired now."""

    name: str
    status: str
    current: bool
    since: float | None
    desired: Desired | None
    matters: tuple[Matter, ...]
    version: int
    changed_at: float
    changed_by: str
    spec: Spec
    ops: Figures | None = None

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.spec.metadata.get("labels") or {}
        return found

    @property
    def source_type(self) -> str:
        return str((self.spec.spec.get("source") or {}).get("type", ""))

    @property
    def sink_types(self) -> list[str]:
        return [str(sink.get("type", "")) for sink in self.spec.spec.get("sinks") or ()]


class Transition(Told):
    before: str | None
    after: str
    code: str
    cause: str
    actor: str
    at: float


class Transitions(Told):
    items: tuple[Transition, ...]


class PlanStep(Told):
    """A field that changes. None: absent."""

    path: str
    before: Any = None
    after: Any = None
    effect: str
    note: str = ""


class Plan(Told):
    """What applying a document would change. `version`: of the document that is there; 0: none."""

    pipeline: str
    version: int
    hash: str
    steps: tuple[PlanStep, ...]


class Applied(Told):
    outcome: Literal["created", "changed", "unchanged"]
    plan: Plan
    pipeline: Pipeline


class Event(Told):
    """Something that happened. `number`: of a place in the stream to go on behind; None: it has no place."""

    number: int | None
    type: str
    at: float | None = None
    kind: str = ""
    name: str = ""
