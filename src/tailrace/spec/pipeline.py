"""The pipeline document: from which source, through what, to which sinks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from pydantic import (
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tailrace.change import LANES
from tailrace.config import MIB, POSITION_FIELDS, ByteSize, Duration, Model, Reference, parse_template
from tailrace.contracts import UNKNOWN, Hold, OnError, Processor, Provenance, RecordSink
from tailrace.contracts.entries import ConnectorEntry, ProcessorEntry
from tailrace.registry import SINKS, SOURCES
from tailrace.spec import later
from tailrace.spec.delivery import CommitPolicy
from tailrace.spec.journal import JournalSettings

if TYPE_CHECKING:
    from tailrace.contracts import Sink


LATENCY = timedelta(milliseconds=300)
"""Unless a document says so: what a person calls at once, and several times what a small batch takes."""


class Metadata(Model):
    """The pipeline's name, and whose it is."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=128,
            description="Unique; it names checkpoints and marks, so a new name is a new pipeline.",
            examples=["shop-to-kafka"],
        ),
    ]
    tenant: Annotated[
        str, Field(min_length=1, description="Goes into every record as `tenant_id`.", examples=["acme"])
    ] = "default"
    labels: Annotated[
        dict[str, str], Field(description="Your own words about it; without effect.", examples=[{"team": "payments"}])
    ] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], Field(description="Notes for people; without effect.")] = Field(
        default_factory=dict
    )


class Batch(Model):
    """What bounds a micro-batch. A transaction larger than the bounds is one batch of its own."""

    max_events: Annotated[int, Field(ge=1, description="Changes in a batch, at most.", examples=[2000])] = 200_000
    max_bytes: Annotated[
        ByteSize, Field(ge=1, description="Bytes of changes in a batch, at most.", examples=["16MiB"])
    ] = 64 * MIB
    latency: Annotated[
        Duration | None,
        Field(
            description="How soon changes that the log has should be delivered. Batches start as late as that allows, "
            "so that fewer do the same work; `0s`: as soon as there is a change. Neither a change after a pause nor a "
            "full batch is held back, and sinks that gather changes have keys of their own for it. Absent: 300ms, or "
            "what `max_ms` says.",
            examples=["1s"],
        ),
    ] = None
    max_ms: Annotated[
        int | None,
        Field(
            ge=0,
            description="Milliseconds that changes wait in the log for their batch to fill, however long batches take; "
            "in place of `latency`.",
            examples=[1000],
        ),
    ] = None
    respect_source_tx: Annotated[
        bool, Field(description="Whether a batch ends only where a transaction of the source ends.")
    ] = True
    max_inflight: Annotated[
        Literal[1], Field(description="Batches of one sink under way; one, so that order holds.")
    ] = 1

    @model_validator(mode="after")
    def _one_wait(self) -> Batch:
        if self.max_ms is not None and self.latency is not None:
            hint = "leave one of them out: max_ms is a fixed wait, latency leaves room for the time that batches take"
            raise PydanticCustomError("config.invalid_value", "max_ms and latency exclude each other", {"hint": hint})
        return self

    def objective(self) -> timedelta:
        """The latency that batches are paced to; zero: they are not."""
        if self.max_ms is not None:
            return timedelta(0)
        return LATENCY if self.latency is None else self.latency


class Sharding(Model):
    """How the tasks of a batch share its changes. Order holds per row key, or per value of the column `key`."""

    mode: Annotated[Literal["hash"], Field(description="By a hash of the key.")] = "hash"
    count: Annotated[
        int | None,
        Field(
            ge=1,
            le=LANES,
            description="Tasks that share a batch. Absent: as many as Spark has cores for them.",
            examples=[4],
        ),
    ] = None
    key: Annotated[
        str | None,
        Field(
            min_length=1,
            description="A column to shard by instead of the row's key; order then holds per its value. Tables that "
            "lack it, or have changes without it (deletes, unless it is part of the key or the database sends whole "
            "rows), stay with the row's key.",
            examples=["customer_id"],
        ),
    ] = None


class SourceEntry(ConnectorEntry):
    """Where the changes come from."""

    shelf = SOURCES
    planned = later.SOURCE


class SinkEntry(ConnectorEntry):
    """Where the changes go."""

    shelf = SINKS
    planned = later.SINK


class PipelineSpec(Model):
    """The source, the sinks, and how batches are cut."""

    source: SourceEntry
    processors: Annotated[
        tuple[ProcessorEntry, ...], Field(description="Steps that every sink's changes go through, in order.")
    ] = ()
    journal: Annotated[JournalSettings, Field(description="Dead letters.")] = JournalSettings()
    sinks: Annotated[
        tuple[SinkEntry, ...],
        Field(
            description="Each has its own progress: a slow sink holds no other back.",
            json_schema_extra={"minItems": 1},
        ),
    ]
    commit_policy: Annotated[
        CommitPolicy, Field(description="Which sinks must have a change before it counts as delivered.")
    ] = CommitPolicy()
    sink_batch_deadline_secs: Annotated[
        float | None,
        Field(
            gt=0,
            description="Seconds that a batch of records may take. After that its tasks give up what they still wait "
            "for, and the batch is tried again as after any failure. Tables finish what they have begun: a batch of "
            "theirs that takes longer is a warning. Absent: no such bound.",
            examples=[60],
        ),
    ] = None
    batch: Annotated[Batch, Field(description="What bounds a micro-batch.")] = Batch()
    sharding: Annotated[Sharding, Field(description="How tasks share a batch.")] = Sharding()

    @field_validator("sinks")
    @classmethod
    def _told_apart(cls, sinks: tuple[SinkEntry, ...]) -> tuple[SinkEntry, ...]:
        if not sinks:
            hint = "add one, such as `{type: console, config: {id: screen}}`"
            raise PydanticCustomError("config.invalid_value", "there is no sink", {"hint": hint})
        ids = [cast(_Identified, sink.config).id for sink in sinks]
        for twice in {one for one in ids if ids.count(one) > 1}:
            context = {"id": twice, "hint": "give each sink of a pipeline an id of its own"}
            raise PydanticCustomError("config.duplicate_id", "two sinks have the id '{id}'", context)
        return sinks

    @field_validator("commit_policy")
    @classmethod
    def _within_reach(cls, policy: CommitPolicy, info: ValidationInfo) -> CommitPolicy:
        sinks = [cast("Sink", entry.config) for entry in info.data.get("sinks", ())]
        required = sum(sink.required and sink.enabled for sink in sinks)
        if policy.quorum is not None and sinks and policy.quorum > required:
            context = {"quorum": policy.quorum, "required": required, "hint": "lower it, or make more sinks `required`"}
            message = "a quorum of {quorum} cannot be reached: {required} sinks are required"
            raise PydanticCustomError("config.invalid_value", message, context)
        return policy

    @field_validator("sinks")
    @classmethod
    def _with_chains_that_fit(cls, sinks: tuple[SinkEntry, ...], info: ValidationInfo) -> tuple[SinkEntry, ...]:
        """Processors of one chain are told apart by their ids, and a table that mirrors its source stays one."""
        common = tuple(entry.config for entry in info.data.get("processors", ()))
        for sink in (cast("Sink", entry.config) for entry in sinks):
            chain = (*common, *sink.chain())
            if "source" in info.data:
                chain = _of_source(chain, info.data["source"].config)
            _refuse_equal_ids(sink.id, chain)
            if sink.mirrors():
                _refuse_broken_mirror(sink.id, chain)
            if "journal" in info.data:
                _refuse_letters_without_a_place(sink, chain, info.data["journal"])
            if isinstance(sink, RecordSink) and "source" in info.data:
                _refuse_unknown_members(sink, _provenance(info.data["source"].config))
        return sinks


class Pipeline(Model):
    """Carries every change of a source to its sinks."""

    api_version: Annotated[
        Literal["tailrace/v1", "deltaforge/v1"],
        Field(alias="apiVersion", description="The version of this document's shape."),
    ] = "tailrace/v1"
    kind: Annotated[Literal["Pipeline"], Field(description="What this document is.")] = "Pipeline"
    metadata: Metadata
    spec: PipelineSpec

    _file: str = PrivateAttr("PIPELINE.yaml")

    @property
    def file(self) -> str:
        """Where it was read from, for what commands are named to people."""
        return self._file

    def read_from(self, file: str) -> Pipeline:
        """Itself, now that it is known."""
        self._file = file
        return self

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def source(self) -> Model:
        """The source's own configuration."""
        return self.spec.source.config

    @property
    def source_id(self) -> str:
        """Names the tap and the log; pipelines with an equal source share both."""
        return cast(_Identified, self.source).id

    @property
    def provenance(self) -> Provenance:
        """What records say of where their changes come from."""
        return _provenance(self.source)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks that take part, ready to be prepared and opened."""
        return tuple(sink for sink in self._documented if sink.enabled)

    @property
    def disabled(self) -> tuple[Sink, ...]:
        """The sinks that are in the document and not in the run."""
        return tuple(sink for sink in self._documented if not sink.enabled)

    @property
    def entries(self) -> tuple[SinkEntry, ...]:
        """The sinks that take part, with their types."""
        return tuple(entry for entry in self.spec.sinks if cast("Sink", entry.config).enabled)

    def hold(self, sink: Sink) -> Hold:
        """What the log keeps for this sink, by the commit policy."""
        policy = self.spec.commit_policy
        return Hold(sink.enabled and (sink.required or policy.mode == "all"), policy.quorum or 0)

    @property
    def _documented(self) -> tuple[Sink, ...]:
        return tuple(cast("Sink", entry.config) for entry in self.spec.sinks)

    def chain(self, sink: Sink) -> tuple[Processor, ...]:
        """What this sink's changes go through."""
        follows: OnError = "dlq" if self.spec.journal.enabled and isinstance(sink, RecordSink) else "fail"
        whole = (*(entry.config for entry in self.spec.processors), *sink.chain())
        return tuple(each.failing(follows) for each in _of_source(whole, self.source))


def _of_source(chain: tuple[Processor, ...], source: Model) -> tuple[Processor, ...]:
    return tuple(each.of_source(_provenance(source)) for each in chain)


def _refuse_equal_ids(sink: str, chain: tuple[Processor, ...]) -> None:
    ids = [each.id for each in chain]
    for twice in {one for one in ids if ids.count(one) > 1}:
        hint = "give each processor of a chain an `id` of its own"
        context = {"id": twice, "sink": sink, "hint": hint}
        raise PydanticCustomError("config.duplicate_id", "two processors before '{sink}' have the id '{id}'", context)


def _refuse_broken_mirror(sink: str, chain: tuple[Processor, ...]) -> None:
    for each in chain:
        reason = each.breaks_mirror()
        if reason is not None:
            hint = "use write_mode: append for this sink, or move the processor to the sinks that can take it"
            context = {"sink": sink, "id": each.id, "reason": reason, "hint": hint}
            message = "behind '{id}' the tables of '{sink}' would not equal their source: {reason}"
            raise PydanticCustomError("config.breaks_mirror", message, context)


def _refuse_letters_without_a_place(sink: Sink, chain: tuple[Processor, ...], journal: JournalSettings) -> None:
    makers = [f"'{each.id}'" for each in chain if each.makes_letters()]
    if makers and not isinstance(sink, RecordSink):
        hint = "use on_error: fail or skip, or move the processor to the sinks that get records"
        context = {"sink": sink.id, "who": makers[0], "hint": hint}
        message = "{who} has on_error: dlq, but the tables of '{sink}' have no dead letters: they halt instead"
        raise PydanticCustomError("config.no_letters", message, context)
    if isinstance(sink, RecordSink) and sink.on_error == "dlq":
        makers.append(f"'{sink.id}'")
    if isinstance(sink, RecordSink) and sink.publishes_letters() and not journal.enabled:
        context = {"sink": sink.id, "hint": "add `journal: {enabled: true}` to the spec, or leave the topic out"}
        message = "'{sink}' has a topic for dead letters, but there is no journal"
        raise PydanticCustomError("config.no_letters", message, context)
    if makers and not journal.enabled:
        context = {"who": makers[0], "hint": "add `journal: {enabled: true}` to the spec, or use fail or skip"}
        raise PydanticCustomError("config.no_letters", "{who} has on_error: dlq, but there is no journal", context)


def _refuse_unknown_members(sink: RecordSink, provenance: Provenance) -> None:
    """A template names a member of `source` that only other kinds of sources have."""
    for name, template in sink.routes().items():
        for part in parse_template(template):
            if isinstance(part, Reference) and part.path[0] == "source" and part.path[1] in POSITION_FIELDS:
                known = provenance.templates()
                if part.path[1] not in known:
                    hint = "use one of " + ", ".join(f"`${{source.{each}}}`" for each in known)
                    context = {"sink": sink.id, "name": name, "member": part.path[1], "hint": hint}
                    message = "`{name}` of '{sink}': changes of this source have no `source.{member}`"
                    raise PydanticCustomError("config.bad_template", message, context)


def _provenance(source: Model) -> Provenance:
    return getattr(source, "provenance", UNKNOWN)


class _Identified(Protocol):
    id: str
