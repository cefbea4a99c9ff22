"""What sinks promise: where changes go, as records or into tables, and what becomes of those that are refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, cast

import pyarrow as pa
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import DebeziumEnvelope, Envelope, Model, NativeEnvelope
from tailrace.contracts.checking import Check, Subject
from tailrace.contracts.entries import ProcessorEntry
from tailrace.contracts.letter_topics import LetterRecord
from tailrace.contracts.letters import OnError
from tailrace.contracts.processing import Processor
from tailrace.errors import SinkError
from tailrace.registry import ENCODERS, PROCESSORS


@dataclass(frozen=True)
class Span:
    """A half-open range `[start, end)` of offsets of one log: what a micro-batch delivers. `began` is where the sink's
    first batch began: whoever starts behind it has delivered before.

    With `letters`, which are event ids, it is no range but these dead letters, delivered again: whatever mark the sink
    keeps does not concern them, and stays where it is."""

    log_id: str
    start: int
    end: int
    letters: tuple[str, ...] = ()
    began: int = field(default=0, compare=False)


def never() -> bool:
    """Of a run that does not end."""
    return False


@dataclass(frozen=True)
class Delivery:
    """Whose delivery it is. `pipeline` is its name; together with the sink's id it names marks and producers. `run` is
    another one for every start of the pipeline, the same for what a start tries again.

    `ending` tells whether the run drains. Whoever waits for a server asks it, and then gives up within a few seconds,
    with `sink.unavailable`: the batch comes again with the next run. It does not travel; a task has one of its own."""

    pipeline: str
    tenant: str
    source: str
    ending: Callable[[], bool] = field(default=never, compare=False, repr=False)
    run: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, (self.pipeline, self.tenant, self.source, never, self.run)


@dataclass(frozen=True)
class Rejected:
    """A record that the target refuses for what it is, so that another attempt would not help. `row` is its row, alone
    (`batch.slice(n, 1)`), of a batch that the writer was given; `error` says why (see `errors.SET_ASIDE`)."""

    row: pa.RecordBatch
    error: SinkError


@dataclass(frozen=True)
class Written:
    """What became of a writer's part of a span: every row of it is durable at the target, but for those `rejected`.
    The `receipt` reaches `Sink.commit`."""

    receipt: str = ""
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Hold:
    """What the log keeps for a sink. `required`: all that it has not read, even beyond the log's bounds; with a
    `quorum` only what fewer than so many of its pipeline's required sinks have read."""

    required: bool
    quorum: int = 0


class Writer(Protocol):
    """Lives in one Spark task, for one span. It gets the sink's columns as Arrow batches, in `seq` order per key.
    Others beside them, whose names have a colon, are for dead letters: it leaves those alone. Letters that are
    delivered again come in the driver or in a command, on one thread at a time."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Deliver every row, durably, before returning; a record that is refused keeps no other from being delivered.
        Raises `SinkError` where the target, and not a record, is the trouble. It never waits long for the target
        (seconds, not minutes): whoever waits here keeps other sinks from working, and the batch comes again."""
        ...


@dataclass(frozen=True)
class Gather:
    """A batch is cut when its oldest change has waited for so long, or when so much is there (0: no such bound)."""

    seconds: float
    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Jar:
    """A library of the JVM that Spark must have, by its Maven coordinates; with all it needs, if `transitive`."""

    group: str
    artifact: str
    version: str
    transitive: bool = False


EXTENSIONS = "spark.sql.extensions"


class SinkFilter(Model):
    """Which changes a sink wants, by who made them."""

    exclude_synthetic: Annotated[bool, Field(description="Only what the source did.")] = False
    synthetic_only: Annotated[bool, Field(description="Only what a processor made.")] = False
    producers: Annotated[
        tuple[str, ...],
        Field(description="Of what processors made, only what these made. Absent: of all.", examples=[["enrich"]]),
    ] = ()


class SinkRetry(Model):
    """How a sink that is away is tried again. What is absent is as in the platform document's `retry`."""

    max_attempts: Annotated[
        int | None,
        Field(
            ge=1,
            description="Attempts without a delivery in between after which the sink stops for good. Absent: there is "
            "no last one.",
            examples=[10],
        ),
    ] = None
    initial_wait_seconds: Annotated[float | None, Field(gt=0, description="The first wait.", examples=[0.5])] = None
    max_wait_seconds: Annotated[float | None, Field(gt=0, description="The longest wait.", examples=[60])] = None
    multiplier: Annotated[
        float | None, Field(ge=1, description="What each wait is multiplied by for the next.", examples=[2])
    ] = None
    jitter: Annotated[
        float | None,
        Field(ge=0, le=1, description="How much of each wait is random, as a share of it.", examples=[0.2]),
    ] = None


class Sink(Model, ABC):
    """Where changes go: as records (`RecordSink`) or into tables (`sinks.tables.TableSink`). A subclass is one file in
    `sinks/`; its docstring says how it absorbs a repeat (Law 4)."""

    id: Annotated[str, Field(description="Unique name of the sink in its pipeline.", pattern=r"^[A-Za-z0-9._-]+$")]
    required: Annotated[
        bool,
        Field(
            description="Whether the log keeps every change until this sink has it, even beyond its `retention`. "
            "`false`: the sink may fall behind the log, and then stops with `log.expired`."
        ),
    ] = True

    enabled: Annotated[
        bool,
        Field(
            description="`false`: the sink stays in the document and out of the run. It keeps its place, and the log "
            "keeps what it has not read as for a sink that is not `required`."
        ),
    ] = True
    retry: Annotated[
        SinkRetry, Field(description="How long to wait before the next attempt, after an error that may pass.")
    ] = SinkRetry()
    processors: Annotated[
        tuple[ProcessorEntry, ...],
        Field(description="Steps that this sink's changes go through, behind those of the spec."),
    ] = ()
    filter: Annotated[SinkFilter | None, Field(description="Which changes it wants, by who made them.")] = None

    def chain(self) -> tuple[Processor, ...]:
        """What its changes go through behind the processors that all sinks share."""
        own = tuple(entry.config for entry in self.processors)
        if self.filter is None:
            return own
        wanted = cast(type[Processor], PROCESSORS.load("synthetic"))
        return (*own, wanted.model_validate({"id": "filter", **self.filter.model_dump()}))

    def mirrors(self) -> bool:
        """Whether its tables are to equal their source."""
        return False

    def gather(self) -> Gather | None:
        """What to wait for before a batch is cut, for sinks that prefer few large commits."""
        return None

    def batch_events(self) -> int | None:
        """The most changes it takes in a batch, where that is fewer than the pipeline's; None: as the pipeline says."""
        return None

    def snapshot_batches(self) -> int:
        """How many batches' worth of rows of a snapshot it takes in one batch."""
        return 1

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        """Whether everything is ready for it, for `tailrace doctor`: it connects and looks, and changes nothing."""
        yield subject.ok("ready", "needs nothing")

    def jars(self) -> tuple[Jar, ...]:
        """What Spark's JVM needs for it; fetched on first use."""
        return ()

    def spark_settings(self) -> Mapping[str, str]:
        """What Spark's session must be started with. `spark.sql.extensions` of several sinks are joined."""
        return {}


class RecordSink(Sink):
    """Gets each change as a record, in Spark tasks."""

    carries_tombstones: ClassVar[bool] = False
    """Whether it has records without a value: what `tombstones` of an envelope asks for."""
    keeps: ClassVar[Literal["events", "state"]] = "events"
    """`state`: of each key the target has the last record alone, so that a dead letter is worth nothing once a newer
    one of its key, or a truncate, was delivered. `events`: it has them all, and a letter would come out of order."""

    envelope: Annotated[Envelope, Field(description="Shape of each record.")] = NativeEnvelope()
    on_error: Annotated[
        OnError | None,
        Field(
            description="What follows where the target refuses a record for what it is: the sink stops (`fail`), the "
            "change becomes a dead letter (`dlq`, needs `journal`), or it is counted and gone (`skip`). Absent: `dlq` "
            "where the pipeline has a `journal`, else `fail`."
        ),
    ] = None
    max_rejected_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Where more than this share of a batch is refused, and at least 20 changes are (in all, over "
            "such batches in a row), the sink stops with `sink.too_many_rejected` instead of setting them aside. `1`: "
            "never.",
        ),
    ] = 0.5

    @model_validator(mode="after")
    def _carries_its_tombstones(self) -> Self:
        if self.wants_tombstones and not self.carries_tombstones:
            hint = "leave tombstones out: deletes are records of their own"
            message = "this sink has no records without a value"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    @property
    def wants_tombstones(self) -> bool:
        """Whether a record without a value is to follow each delete."""
        return isinstance(self.envelope, DebeziumEnvelope) and self.envelope.tombstones

    def chain(self) -> tuple[Processor, ...]:
        """The same, and at its end what the envelope makes of values."""
        shared = super().chain()
        if not (isinstance(self.envelope, DebeziumEnvelope) and self.envelope.values == "debezium"):
            return shared
        values = cast(type[Processor], ENCODERS.load("debezium"))
        return (*shared, values.model_validate({"id": "envelope", "schemas": self.envelope.schemas}))

    def columns(self) -> tuple[str, ...]:
        """Canonical columns (see `change.CHANGES`, plus `event_id`) the writer needs besides `value` and its routes."""
        return ()

    def tasks(self) -> int | None:
        """How many tasks share a batch; None: as the pipeline's `sharding` says. 1 is for targets where all changes
        must come in one order."""
        return None

    def routes(self) -> Mapping[str, str]:
        """Column name → routing template (`${source.table}` …), rendered per change for the writer."""
        return {}

    def routed(self) -> Mapping[str, str]:
        """Column name → what processors call it in a change's `route` (`topic`, `key`, `headers` …). Behind processors
        the writer gets these columns: what they said, or else what `routes` or the row's key says, or null."""
        return {}

    def wants_value(self) -> bool:
        """Whether the writer needs `value`, the rendered envelope."""
        return True

    def prepare(self, delivery: Delivery) -> None:
        """Once on the driver, before the first batch: check reachability, create what is missing, finish an
        interrupted commit. Raises `SinkError("sink.unavailable")` where waiting can help."""

    def warnings(self, delivery: Delivery) -> tuple[str, ...]:
        """What somebody should know about the target, as its status says it. Asked once, right after `prepare`; raises
        what that raises."""
        return ()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        """The offset below which this sink already holds every change of the log; 0 where it keeps no mark."""
        return 0

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        """Which of these dead letters, by their event ids, the sink's own commits have; none where it has no commits of
        its own. They are not delivered again after a crash."""
        return frozenset()

    def publishes_letters(self) -> bool:
        """Whether new dead letters go to a topic as well."""
        return False

    def publish_letters(self, delivery: Delivery, letters: Sequence[LetterRecord]) -> None:
        """On the driver, once the journal has them and before the batch commits: return when the topic has each. After
        a crash or a failure they come again. Raises what makes the batch wait or the sink stop."""

    @abstractmethod
    def open(self, delivery: Delivery, span: Span, task: int) -> Writer:
        """In a Spark task: a writer for this span. May reuse connections between calls in one process."""

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        """On the driver, after every task of the span wrote: make it visible and move the mark. Of dead letters that
        are delivered again: make them visible and note their event ids, in one commit, for `replayed`."""
