"""What became of changes at a pipeline's sinks, as far as files beside the log tell: no sink is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace.changelog import Owner, Subscribers
from tailrace.control import Store
from tailrace.control.journal import Journal, LetterFate
from tailrace.spark.letters import HOLD
from tailrace.spec import Pipeline
from tailrace.supervisor.layout import Layout


@dataclass(frozen=True)
class Fate:
    """Of a change at a sink. `sent`: the sink has reported that everything up to and with it is done, which also says
    so of what its chain drops; None: it never reported. `letters` are the change's dead letters there."""

    sent: bool | None
    letters: tuple[LetterFate, ...] = ()


class Fates:
    """As the sinks last reported, which they do within a second or so of a batch."""

    def __init__(self, pipeline: Pipeline, layout: Layout, log_id: str) -> None:
        self._pipeline, self._layout, self._log_id = pipeline, layout, log_id
        self._sinks = tuple(sink.id for sink in pipeline.sinks)
        owners = [(each.owner, each.offset) for each in Subscribers(layout.log(pipeline.source_id)).all()]
        self._offsets = {owner: offset for owner, offset in owners if owner is not None and owner.table != HOLD}

    def of(self, changes: Iterable[tuple[int, str]]) -> dict[int, Mapping[str, Fate]]:
        """By offset and sink, of changes told as (offset, table)."""
        known = dict(changes)
        letters: dict[tuple[int, str], tuple[LetterFate, ...]] = {}
        for each in self._letters(list(known)):
            letters[each.seq, each.sink] = (*letters.get((each.seq, each.sink), ()), each)
        return {
            seq: {sink: Fate(self.is_sent(sink, table, seq), letters.get((seq, sink), ())) for sink in self._sinks}
            for seq, table in known.items()
        }

    def reached(self, sink: str, table: str) -> int | None:
        """Below it the sink has everything of the table; None: it never reported."""
        name = self._pipeline.name
        whole = self._offsets.get(Owner(name, sink))
        waiting = self._offsets.get(Owner(name, sink, table))
        return whole if whole is None or waiting is None else min(whole, waiting)

    def is_sent(self, sink: str, table: str, seq: int) -> bool | None:
        reached = self.reached(sink, table)
        return None if reached is None else seq < reached

    def _letters(self, seqs: list[int]) -> list[LetterFate]:
        if not seqs or not self._layout.has_store():
            return []
        store = Store(self._layout.store)
        try:
            return Journal(store, self._pipeline.name).fates(self._log_id, seqs)
        finally:
            store.close()
