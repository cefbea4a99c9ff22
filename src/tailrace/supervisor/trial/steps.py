"""A chain, processor by processor, so that each drop has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import Place, Processor
from tailrace.processors.chain import Chain, OpenChain, processed, shaped
from tailrace.processors.frames import FrameProcessor
from tailrace.supervisor.trial.frames import framed

ChangeId = tuple[int, str | None]
"""`seq` and `part`."""


class Drop(NamedTuple):
    processor: str
    reason: str


@dataclass
class Passed:
    """What comes out of a chain, and what was dropped on the way."""

    rows: pa.RecordBatch
    drops: dict[ChangeId, Drop] = field(default_factory=dict)


class Steps:
    """An open chain, over batches and over frames. Before a table that mirrors its source, what is dropped comes out
    as a delete."""

    def __init__(self, place: Place, processors: Sequence[Processor]) -> None:
        self._steps = []
        for each in processors:
            settle = OpenChain([(each.id, _as_it_is)], mirror=place.mirror, deletes=place.mirror)
            self._steps.append((each.id, _marking(each, place), settle))
            place = shaped(place, each)

    def __call__(self, batch: pa.RecordBatch) -> Passed:
        found = Passed(processed(batch))
        for processor, mark, settle in self._steps:
            marked = mark(found.rows)
            gone = marked.filter(pc.is_valid(marked.column("dropped"))).select(["seq", "part", "dropped"])
            for row in gone.to_pylist():
                found.drops[row["seq"], row["part"]] = Drop(processor, row["dropped"])
            found.rows = settle(marked)
        return found


def _marking(processor: Processor, place: Place) -> OpenChain:
    """The processor alone: what it drops stays, with the reason."""
    if isinstance(processor, FrameProcessor):
        return OpenChain(
            [(processor.id, framed(processor, place))], mirror=place.mirror, deletes=place.mirror, keep_dropped=True
        )
    return Chain((processor,)).open(place, keep_dropped=True)


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
