"""A running pipeline's dead letters: how full the journal is, and the replays that somebody asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tailrace.contracts import Delivery, RecordSink
from tailrace.control.journal import Journal, JournalTotals
from tailrace.control.replays import Replays
from tailrace.spark.letters import LetterKeeping
from tailrace.spark.query import Query
from tailrace.spark.replay import Redelivery
from tailrace.spec import Pipeline
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.status import LetterGroup, LetterStatus

LOOK_S = 1.0
"""How often the store is asked."""
FULL, NEARLY_FULL = 0.95, 0.8


def keeping_of(pipeline: Pipeline, layout: Layout) -> LetterKeeping | None:
    """Where the pipeline's dead letters go; None: it has none."""
    settings = pipeline.spec.journal
    if not settings.enabled:
        return None
    journal = Journal(layout.open_store(), pipeline.name, settings.bounds)
    return LetterKeeping(journal, settings.max_event_bytes, settings.dlq.hold_key)


class LetterWatch:
    """Of one pipeline, for its status."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal, self._clock = journal, clock
        self._looked = -LOOK_S
        self._totals = JournalTotals({})

    def status(self) -> LetterStatus:
        if self._clock() >= self._looked + LOOK_S:
            self._looked, self._totals = self._clock(), self._journal.totals()
        totals, most = self._totals, self._journal.bounds.max_entries
        return LetterStatus(
            self._journal.pipeline,
            totals.open,
            totals.states.get("held", 0),
            most,
            totals.evicted,
            totals.expired,
            tuple(self._warnings(totals.open / most)),
            tuple(LetterGroup(sink, code, count) for (sink, code), count in sorted(totals.groups.items())),
        )

    def _warnings(self, share: float) -> list[str]:
        if share < NEARLY_FULL:
            return []
        follows = {
            "drop_oldest": "the oldest go when it is full",
            "reject": "sinks stop when it is full",
            "block": "sinks wait when it is full",
        }[self._journal.bounds.overflow]
        bound = FULL if share >= FULL else NEARLY_FULL
        way_out = "see tailrace dlq list, then replay, ack or purge"
        return [f"the journal is more than {bound:.0%} full ({share:.0%}), and {follows}: {way_out}"]


class ReplayDesk:
    """Of one sink: carries out what was asked for, between its batches."""

    def __init__(self, journal: Journal, sink: RecordSink, delivery: Delivery, layout: Layout) -> None:
        self._journal, self._sink, self._delivery = journal, sink, delivery
        self._log_path = layout.log(delivery.source)
        self._replays = Replays(journal.store, journal.pipeline)
        self._looked = -LOOK_S

    def look(self, query: Query, halt: threading.Event, *, at_once: bool = False) -> None:
        """Whether there is something to do, and do it, as often as that is due or else `at_once`. Raises what a batch
        is retried for, too."""
        if not at_once and time.monotonic() < self._looked + LOOK_S:
            return
        self._looked = time.monotonic()
        for replay in self._replays.requested():
            redelivery = Redelivery(
                self._journal,
                self._replays,
                self._sink,
                self._delivery,
                self._log_path,
                query.between_batches,
                query.rows_of,
            )
            redelivery.carry_out(replay, halt.wait)
