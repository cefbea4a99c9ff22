"""How a query's batches went, in figures: a few additions for each batch, and nothing for a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.histogram import NO_ROWS, NO_SECONDS, Histogram
from tailrace.spark.task import Count


@dataclass(frozen=True)
class Pulse:
    """How its batches went. `delay_s`: from the commit of a table's newest change in a batch until the batch was
    delivered; one figure for each table of each batch. `batch_s` and `batch_rows`: of each batch. `last_s`: when the
    last was delivered; 0: none was."""

    delay_s: Histogram = NO_SECONDS
    batch_s: Histogram = NO_SECONDS
    batch_rows: Histogram = NO_ROWS
    last_s: float = 0.0

    def beat(self, counts: Iterable[Count], took_s: float, now_s: float) -> Pulse:
        """With another batch."""
        counts = list(counts)
        delays = (max(0.0, now_s - count.last_us / 1e6) for count in counts if count.last_us)
        rows = sum(count.rows for count in counts)
        return Pulse(self.delay_s.seen(*delays), self.batch_s.seen(took_s), self.batch_rows.seen(rows), now_s)

    def plus(self, later: Pulse) -> Pulse:
        """Of two queries, one after the other."""
        return Pulse(
            self.delay_s.plus(later.delay_s),
            self.batch_s.plus(later.batch_s),
            self.batch_rows.plus(later.batch_rows),
            max(self.last_s, later.last_s),
        )
