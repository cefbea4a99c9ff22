"""Try a pipeline's chain of processors out on changes: what becomes of each, and whether a repeat says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import Place, Processor, Sink
from tailrace.errors import ConfigError
from tailrace.processors.chain import ROW_OPS, with_columns
from tailrace.processors.javascript.process import ENGINES
from tailrace.processors.outcome import members
from tailrace.spec import Pipeline
from tailrace.supervisor.trial.samples import Samples
from tailrace.supervisor.trial.steps import ChangeId, Drop, Steps

IMAGES = ("key", "before", "after")
COMPARED = ("op", *IMAGES, "unchanged", "tags", "route", "synthetic")
"""Columns of which a chain may make something else."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A member that became another one: texts as they are in JSON, None where there is none."""

    member: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Result:
    """What became of a change: the rows that come out for it, the change itself first, and who dropped it, if so."""

    change: Row
    rows: tuple[Row, ...] = ()
    dropped_by: str = ""
    reason: str = ""

    @property
    def kept(self) -> Row | None:
        """The change itself, as it comes out."""
        return next((row for row in self.rows if row["part"] == self.change.get("part")), None)

    @property
    def made(self) -> tuple[Row, ...]:
        """What comes out beside it."""
        return tuple(row for row in self.rows if row["part"] != self.change.get("part"))

    def differences(self) -> list[Difference]:
        """How the change comes out otherwise than it came in."""
        return [] if self.kept is None else differences(self.change, self.kept)


@dataclass(frozen=True)
class Disagreement:
    """A change that became something else when it was tried again in another way."""

    way: str
    change: Row
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Trial:
    """A pipeline's chain before one of its sinks."""

    pipeline: Pipeline
    sink: Sink

    @classmethod
    def of(cls, pipeline: Pipeline, sink: str | None) -> Trial:
        """The chain before this sink; before the first, if none is named."""
        sinks = {each.id: each for each in pipeline.sinks}
        if sink is not None and sink not in sinks:
            message = f"the pipeline has no sink '{sink}'"
            raise ConfigError("config.no_sink", message, hint=f"its sinks are: {', '.join(sinks)}")
        return cls(pipeline, sinks[sink] if sink is not None else pipeline.sinks[0])

    @property
    def processors(self) -> tuple[Processor, ...]:
        return self.pipeline.chain(self.sink)

    def run(self, samples: Samples) -> list[Result]:
        """What becomes of each change."""
        return self._results(samples.changes, [samples.changes], samples.tables)

    def again(self, samples: Samples, results: Sequence[Result]) -> list[Disagreement]:
        """What becomes of them otherwise: in batches of other sizes, with engines that were ended, with other ops."""
        found: list[Disagreement] = []
        whole = samples.changes
        for way, batches, ended in (
            ("the same batch again", [whole], False),
            ("one change at a time", _cut(whole, 1), False),
            ("seven changes at a time", _cut(whole, 7), False),
            ("after an engine was ended", _cut(whole, 3), True),
        ):
            tried = self._results(whole, batches, samples.tables, ended=ended)
            found += _disagreements(way, results, tried, COMPARED)
        return found + list(self._with_other_ops(samples, results))

    def _with_other_ops(self, samples: Samples, results: Sequence[Result]) -> Iterator[Disagreement]:
        """A chain before a table that equals its source may look at table, key and `after` alone."""
        row_wise = bool(self.processors) and all(each.breaks_mirror() is None for each in self.processors)
        for op in ROW_OPS if row_wise and self.sink.mirrors() else ():
            ops = [op if each in ROW_OPS else each for each in samples.changes.column("op").to_pylist()]
            nothing = pa.nulls(samples.changes.num_rows, pa.string())
            rows = pa.array([each in ROW_OPS for each in ops])
            before = pc.if_else(rows, nothing, samples.changes.column("before"))
            changes = with_columns(samples.changes, op=pa.array(ops), before=before)
            tried = self._results(changes, [changes], samples.tables)
            yield from _disagreements(f"as op {op}, without before", results, tried, ("key", "after", "tags", "route"))

    def _results(
        self,
        changes: pa.RecordBatch,
        batches: Sequence[pa.RecordBatch],
        tables: Mapping[int, Any],
        *,
        ended: bool = False,
    ) -> list[Result]:
        run = _Run(self._place(tables), self.processors)
        for batch in batches:
            if ended:
                ENGINES.close()
                run = _Run(run.place, self.processors, run.rows, run.drops)
            run(batch)
        return [run.result(change) for change in changes.to_pylist()]

    def _place(self, tables: Mapping[int, Any]) -> Place:
        connector = str(getattr(self.pipeline.source, "connector", ""))
        tenant = self.pipeline.metadata.tenant
        return Place(self.pipeline.name, tenant, connector, tables, self.sink.mirrors(), outspoken=True)


@dataclass
class _Run:
    """A chain, and what became of the changes that went through it."""

    place: Place
    processors: Sequence[Processor]
    rows: dict[int, list[Row]] = field(default_factory=dict)
    drops: dict[ChangeId, Drop] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._steps = Steps(self.place, self.processors)

    def __call__(self, batch: pa.RecordBatch) -> None:
        passed = self._steps(batch)
        self.drops |= passed.drops
        for row in passed.rows.to_pylist():
            self.rows.setdefault(row["seq"], []).append(row)

    def result(self, change: Row) -> Result:
        rows = sorted(self.rows.get(change["seq"], []), key=lambda row: row["part"] is not None)
        by, reason = self.drops.get((change["seq"], change.get("part")), ("", ""))
        return Result({"part": None, **change}, tuple(rows), by, reason)


def differences(one: Row, other: Row, columns: Sequence[str] = COMPARED) -> list[Difference]:
    """Members that differ between two changes; of images each by its name."""
    found: list[Difference] = []
    for name in columns:
        before, after = _plain(one.get(name)), _plain(other.get(name))
        if before == after:
            continue
        if name in IMAGES and _is_object(before) and _is_object(after):
            found += _of_images(name, str(before), str(after))
        else:
            found.append(Difference(name, before, after))
    return found


def _of_images(image: str, before: str, after: str) -> Iterator[Difference]:
    was, now = members(before), members(after)
    for name in dict.fromkeys((*was, *now)):
        if was.get(name) != now.get(name):
            yield Difference(f"{image}.{name}", was.get(name), now.get(name))


def _is_object(text: str | None) -> bool:
    return text is not None and text.startswith("{")


def _plain(value: Any) -> str | None:
    """A column as text: images have one, lists and mappings of nothing are nothing."""
    if isinstance(value, list):
        pairs = [": ".join(each) if isinstance(each, tuple) else str(each) for each in value]
        return ", ".join(pairs) or None
    return None if value is None else str(value)


def _disagreements(
    way: str, results: Sequence[Result], tried: Sequence[Result], columns: Sequence[str]
) -> list[Disagreement]:
    found = []
    for first, second in zip(results, tried, strict=True):
        differing = _between(first, second, columns)
        if differing:
            found.append(Disagreement(way, first.change, tuple(differing)))
    return found


def _between(first: Result, second: Result, columns: Sequence[str]) -> list[Difference]:
    """How two results of one change differ."""
    found = []
    fates = [f"dropped by {each.dropped_by}: {each.reason}" if each.dropped_by else "kept" for each in (first, second)]
    if fates[0] != fates[1]:
        found.append(Difference("fate", *fates))
    parts = [{row["part"]: row for row in each.rows} for each in (first, second)]
    for part in dict.fromkeys((*parts[0], *parts[1])):
        one, other = (each.get(part) for each in parts)
        if one is None or other is None:
            if part is not None:
                found.append(Difference(f"made {part}", *("there" if row else "absent" for row in (one, other))))
        else:
            found += differences(one, other, columns)
    return found


def _cut(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [batch.slice(at, size) for at in range(0, batch.num_rows, size)]
