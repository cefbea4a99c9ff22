"""What answers look like. Names and shapes of seed 000 where it has them; what is ours stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tailrace.control.actual import Transition
from tailrace.control.documents import Version
from tailrace.supervisor.service import PipelineRecord
from tailrace.supervisor.service.plan import Plan
from tailrace.supervisor.service.states import Finding, PipelineView
from tailrace.supervisor.status import SinkStatus, TapStatus

T = TypeVar("T")


class Answer(BaseModel):
    """The ground of all shapes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Answer, Generic[T]):
    """A part of a list. `next` is the cursor of the next part; null: there is none."""

    items: list[T]
    next: str | None = None


class PipelineSpecShown(Answer):
    """The document, as it was written, without its secrets."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: dict[str, Any] = Field(default_factory=dict)


class Matter(Answer):
    """What is the matter with a part of a pipeline, and the way out."""

    part: str
    state: str
    code: str
    message: str
    hint: str

    @staticmethod
    def of(finding: Finding) -> Matter:
        return Matter(**asdict(finding))


class SinkShown(Answer):
    """A sink as it is. What is not known is null."""

    id: str
    type: str
    state: str
    offset: int | None
    lag_rows: int | None
    lag_seconds: float | None
    batches: int
    rows: int
    warnings: list[str]
    error: dict[str, str] | None

    @staticmethod
    def of(sink: SinkStatus) -> SinkShown:
        return SinkShown(
            id=sink.sink,
            type=sink.kind,
            state=sink.state,
            offset=sink.offset,
            lag_rows=sink.lag_rows,
            lag_seconds=sink.lag_s,
            batches=sink.batches,
            rows=sum(table.rows for table in sink.tables.values()),
            warnings=list(sink.warnings),
            error=sink.error,
        )


class SourceShown(Answer):
    """A source as its tap tells. What is not known is null."""

    id: str
    state: str
    rows: int
    transactions: int
    lag_seconds: float | None
    lag_bytes: int | None
    log_end: int | None
    held_bytes: int | None
    time_to_loss_seconds: float | None
    restarts: int
    warnings: list[str]
    error: dict[str, str] | None

    @staticmethod
    def of(tap: TapStatus) -> SourceShown:
        return SourceShown(
            id=tap.source,
            state=tap.state,
            rows=tap.rows,
            transactions=tap.transactions,
            lag_seconds=tap.lag_s,
            lag_bytes=tap.lag_bytes,
            log_end=tap.head,
            held_bytes=tap.held_bytes,
            time_to_loss_seconds=tap.time_to_loss_s,
            restarts=tap.restarts,
            warnings=list(tap.warnings),
            error=tap.error,
        )


class Checkpoint(Answer):
    """How far a sink is. `position` is the offset in the change log below which it has everything."""

    sink_id: str
    position: int | None
    age_seconds: float | None


class Ops(Answer):
    """A pipeline in figures. `lag_seconds`: how long the oldest change has waited for a sink."""

    lag_seconds: float | None
    dlq_entries: int | None
    sink_errors: dict[str, str]
    uptime_seconds: float | None
    checkpoints: list[Checkpoint]
    committed: int | None
    source: SourceShown | None
    sinks: list[SinkShown]
    tables: list[TableShown]
    snapshots: list[SnapshotShown]


class TableShown(Answer):
    """What a sink got of a table since the run began."""

    sink: str
    table: str
    rows: int
    last_change_at: float | None


class SnapshotShown(Answer):
    """A table that is being read, or could not be. `estimate` is the database's guess of its rows."""

    table: str
    state: str
    rows: int
    estimate: int | None
    error: dict[str, str] | None


class PipelineInfo(Answer):
    """A pipeline. `etag` names its document's version. `current`: the status is of that version and of what is desired
    now, which takes a moment after a change."""

    name: str
    status: str
    current: bool
    since: float | None
    desired: Literal["running", "paused", "stopped"] | None
    matters: list[Matter]
    version: int
    etag: str
    changed_at: float
    changed_by: str
    spec: PipelineSpecShown
    ops: Ops | None = None

    @staticmethod
    def of(record: PipelineRecord, *, whole: bool = False) -> PipelineInfo:
        """`whole`: with its figures."""
        view = record.view
        return PipelineInfo(
            name=record.name,
            status=record.state,
            current=record.current,
            since=None if view is None else view.since,
            desired=record.desired,
            matters=[] if view is None else [Matter.of(each) for each in view.findings],
            version=record.version,
            etag=etag_of(record),
            changed_at=record.changed_us / 1e6,
            changed_by=record.actor,
            spec=_spec(record.content),
            ops=_ops(view) if whole and view is not None else None,
        )


class DocumentVersion(Answer):
    """A version of a document. Without `document`: it was deleted then."""

    version: int
    at: float
    actor: str
    cause: str
    document: dict[str, Any] | None

    @staticmethod
    def of(version: Version) -> DocumentVersion:
        content = None if version.content is None else dict(version.content)
        return DocumentVersion(
            version=version.version, at=version.at_us / 1e6, actor=version.actor, cause=version.cause, document=content
        )


class TransitionShown(Answer):
    """From which state to which, when, and why."""

    number: int
    before: str | None
    after: str
    code: str
    cause: str
    actor: str
    at: float

    @staticmethod
    def of(step: Transition) -> TransitionShown:
        return TransitionShown(
            number=step.number,
            before=step.before,
            after=step.after,
            code=step.code,
            cause=step.cause,
            actor=step.actor,
            at=step.at_us / 1e6,
        )


class PlanStep(Answer):
    """A field that changes, and what that costs."""

    path: str
    before: Any = None
    after: Any = None
    effect: Literal["live", "restart", "re-read", "new"]
    note: str = ""


class PlanShown(Answer):
    """What applying a document would change."""

    pipeline: str
    version: int
    hash: str
    steps: list[PlanStep]

    @staticmethod
    def of(plan: Plan) -> PlanShown:
        steps = [PlanStep(**asdict(step)) for step in plan.steps]
        return PlanShown(pipeline=plan.pipeline, version=plan.version, hash=plan.hash, steps=steps)


class AppliedShown(Answer):
    """What became of a document."""

    outcome: Literal["created", "changed", "unchanged"]
    plan: PlanShown
    pipeline: PipelineInfo


class ProblemShown(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    message: str
    hint: str = ""
    where: str = ""
    problems: list[dict[str, Any]] | None = None


def etag_of(record: PipelineRecord) -> str:
    return f'"{record.version}"'


def _spec(content: Mapping[str, Any]) -> PipelineSpecShown:
    return PipelineSpecShown(metadata=dict(content.get("metadata", {})), spec=dict(content.get("spec", {})))


def _ops(view: PipelineView) -> Ops:
    lags = [sink.lag_s for sink in view.sinks if sink.lag_s is not None]
    return Ops(
        lag_seconds=max(lags) if lags else None,
        dlq_entries=sum(each.open for each in view.letters) if view.letters else None,
        sink_errors={sink.sink: sink.error["message"] for sink in view.sinks if sink.error is not None},
        uptime_seconds=None,
        checkpoints=[Checkpoint(sink_id=sink.sink, position=sink.offset, age_seconds=None) for sink in view.sinks],
        committed=None if view.committed is None else view.committed.committed,
        source=None if view.tap is None else SourceShown.of(view.tap),
        sinks=[SinkShown.of(sink) for sink in view.sinks],
        tables=[
            TableShown(
                sink=sink.sink, table=name, rows=table.rows, last_change_at=table.last_us and table.last_us / 1e6
            )
            for sink in view.sinks
            for name, table in sink.tables.items()
        ],
        snapshots=[
            SnapshotShown(table=each.table, state=each.state, rows=each.rows, estimate=each.estimate, error=each.error)
            for each in view.snapshots
        ],
    )


Ops.model_rebuild()
