"""The pipeline document: from which source, through what, to which sinks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, cast

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tailrace.change import LANES
from tailrace.config import MIB, ByteSize, Duration, Model
from tailrace.errors import ConfigError
from tailrace.registry import SINKS, SOURCES, Shelf
from tailrace.spec import later

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


class _ConnectorEntry(Model):
    """`{type, config}`: `type` chooses the connector, whose model then reads `config`."""

    shelf: ClassVar[Shelf]
    planned: ClassVar[Mapping[str, later.Today]]

    type: Annotated[str, Field(description="The connector.")]
    config: Annotated[SerializeAsAny[Model], Field(description="The connector's own settings.")]

    @classmethod
    def kind_of(cls, key: str, data: Mapping[str, object]) -> Any:
        if key != "config":
            return super().kind_of(key, data)
        name = data.get("type")
        return cls.shelf.load(name) if isinstance(name, str) and name in cls.shelf.names() else None

    @field_validator("type")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            cls.shelf.check(name)
        except ConfigError as error:
            context = {"message": error.message, "hint": error.hint}
            raise PydanticCustomError(error.code, "{message}", context) from None
        return name

    @field_validator("config", mode="wrap")
    @classmethod
    def _by_type(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Model:
        if "type" not in info.data:
            return Model()  # `type` is already refused, and nothing can be said about `config` without it.
        connector = cls.shelf.load(info.data["type"])
        return connector.from_document(value) if info.mode == "json" else connector.model_validate(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """One alternative for each connector on the shelf, with the planned keys that are accepted today."""
        plain = handler.resolve_ref_schema(handler(core))
        alternatives = []
        for name in cls.shelf.names():
            settings = handler(cls.shelf.load(name).__pydantic_core_schema__)
            for key, values in cls.planned.get(name, {}).items():
                if values:
                    settings["properties"].setdefault(key, {"enum": list(values)})
            kind = {**plain["properties"]["type"], "const": name}
            alternatives.append({**plain, "title": name, "properties": {"type": kind, "config": settings}})
        return {"title": cls.__name__, "description": plain["description"], "oneOf": alternatives}


class SourceEntry(_ConnectorEntry):
    """Where the changes come from."""

    shelf = SOURCES
    planned = later.SOURCE


class SinkEntry(_ConnectorEntry):
    """Where the changes go."""

    shelf = SINKS
    planned = later.SINK


class PipelineSpec(Model):
    """The source, the sinks, and how batches are cut."""

    source: SourceEntry
    processors: Annotated[tuple[()], Field(description="Steps between source and sinks; none exist yet.")] = ()
    sinks: Annotated[
        tuple[SinkEntry, ...],
        Field(
            description="Each has its own progress: a slow sink holds no other back.",
            json_schema_extra={"minItems": 1},
        ),
    ]
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


class Pipeline(Model):
    """Carries every change of a source to its sinks."""

    api_version: Annotated[
        Literal["tailrace/v1", "deltaforge/v1"],
        Field(alias="apiVersion", description="The version of this document's shape."),
    ] = "tailrace/v1"
    kind: Annotated[Literal["Pipeline"], Field(description="What this document is.")] = "Pipeline"
    metadata: Metadata
    spec: PipelineSpec

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
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks, ready to be prepared and opened."""
        return tuple(cast("Sink", entry.config) for entry in self.spec.sinks)


class _Identified(Protocol):
    id: str
