"""Changes as a sink's chain leaves them, for somebody who looks: without Spark where no processor wants frames, and
never with a value that the chain hides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import PROCESSED
from tailrace.contracts import DEAD_LETTER, Failed, Place, Processor
from tailrace.errors import ProcessorError
from tailrace.processors.chain import processed, with_columns
from tailrace.processors.frames import FrameProcessor
from tailrace.schema import TableSchema
from tailrace.supervisor.trial.steps import ChangeId, Drop, Steps

Tables = Mapping[int, TableSchema]


@dataclass(frozen=True)
class Failure:
    """Why a change does not come out: a processor failed for it."""

    processor: str
    code: str
    message: str


@dataclass
class Seen:
    """What came out, what was dropped, and what was failed for, by `seq`."""

    rows: pa.RecordBatch
    drops: dict[ChangeId, Drop] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def add(self, other: Seen) -> Seen:
        rows: pa.RecordBatch = pa.concat_batches([self.rows, other.rows])  # type: ignore[attr-defined]
        return Seen(rows, self.drops | other.drops, self.failures | other.failures)


class Passing:
    """An open chain. Without processors everything comes out as it is."""

    def __init__(self, place: Place, processors: Sequence[Processor]) -> None:
        self._failed: list[Failed] = []
        self._place, self._processors = replace(place, set_aside=self._failed.append), tuple(processors)
        self._quotes_values = any(isinstance(each, FrameProcessor) for each in self._processors)
        self._steps: Steps | None = None

    def __call__(self, changes: pa.RecordBatch, tables: Tables) -> Seen:
        """`tables`: every version of a table that these changes have."""
        if not self._processors:
            return Seen(processed(changes))
        if not set(pc.unique(changes.column("schema_id")).to_pylist()) <= self._place.tables.keys():
            self._place, self._steps = replace(self._place, tables=dict(tables)), None
        seen = self._passed(changes)
        return replace(seen, rows=_without_defaults(seen.rows))

    def _passed(self, changes: pa.RecordBatch) -> Seen:
        """A change that a processor fails for keeps no other from coming out."""
        self._failed.clear()
        try:
            if self._steps is None:
                self._steps = Steps(self._place, self._processors)
            passed = self._steps(changes)
        except ProcessorError as error:
            self._steps = None  # whatever it was in the middle of
            if changes.num_rows > 1:
                half = changes.num_rows // 2
                return self._passed(changes.slice(0, half)).add(self._passed(changes.slice(half)))
            seq: int = changes.column("seq").to_numpy()[0]
            return Seen(_NOTHING, failures={int(seq): self._failure("", error)})
        set_aside = {each.change.column("seq")[0].as_py(): each for each in self._failed}
        failures = {seq: self._failure(each.processor, each.error) for seq, each in set_aside.items()}
        drops = {which: drop for which, drop in passed.drops.items() if drop.reason != DEAD_LETTER}
        return Seen(passed.rows, drops, failures)

    def _failure(self, processor: str, error: ProcessorError) -> Failure:
        """A statement's error may quote a value that another processor hides."""
        told = "its own words may have values in them: see tailrace test" if self._quotes_values else error.message
        return Failure(processor, error.code, told)


_NOTHING = pa.RecordBatch.from_pylist([], schema=PROCESSED)


def _without_defaults(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Schema changes without their defaults: those are values of rows, and no processor looks at them."""
    ops = changes.column("op").to_pylist()
    if "s" not in ops:
        return changes
    images = changes.column("after").to_pylist()
    after = [_bare(image) if op == "s" else image for op, image in zip(ops, images, strict=True)]
    return with_columns(changes, after=pa.array(after, pa.string()))


def _bare(image: str | None) -> str | None:
    if image is None:
        return None
    return json.dumps({name: value for name, value in json.loads(image).items() if name != "defaults"})
