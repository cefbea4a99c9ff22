"""Runtimes: processes apart from the server, each with one Spark, that carry whatever pipelines they are given.

The server says what a runtime shall carry (`Order`), and the runtime says every half second what it does (`Report`). An
order is the whole of it: what it lacks is drained, what is new or of another generation is started once the one before
is over. A runtime that is started again gets its last order. It ends with its server, by `lifeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.contracts import Sink
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.status import LetterStatus, PipelineStatus, SinkStatus, SnapshotStatus

Generation = tuple[int, int]
"""Of a pipeline: its document's version, and how often it was started anew since."""

REPORT_S = 0.5
"""How often a runtime says how it is."""


@dataclass(frozen=True)
class Request:
    """What a runtime is started with. `sinks` are those whose libraries its Spark has."""

    parent: int
    platform: Platform
    sinks: tuple[Sink, ...]


@dataclass(frozen=True)
class Assignment:
    """A pipeline to carry. Another `generation` of it begins once the one before is over."""

    generation: Generation
    pipeline: Pipeline


@dataclass(frozen=True)
class Order:
    """All that a runtime shall carry, and of which of its sources it reads the snapshots. Each has a `number` above
    that of the one before."""

    number: int = 0
    pipelines: Mapping[str, Assignment] = field(default_factory=dict)
    snapshots: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CarriedStatus:
    """A pipeline in a runtime. `draining`: it is told to end, and has not yet. `error`: why it could not begin."""

    generation: Generation
    draining: bool
    sinks: tuple[SinkStatus, ...] = ()
    letters: tuple[LetterStatus, ...] = ()
    committed: PipelineStatus | None = None
    error: dict[str, str] | None = None


@dataclass(frozen=True)
class SnapshotReport:
    """The snapshots of a source, read by a runtime."""

    tables: tuple[SnapshotStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Report:
    """A runtime's word. `order`: the number of the last order that it has begun to follow. `ready`: its Spark has
    started."""

    pid: int
    order: int = -1
    ready: bool = False
    pipelines: Mapping[str, CarriedStatus] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotReport] = field(default_factory=dict)
