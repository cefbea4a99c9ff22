"""`tap`, `road` and `chain`: rows per second of the tap and of the whole road, as shares of `pg_recvlogical`'s, and of
the road with processors, as a share of the road's.

Each pass writes the rows while every reader's slot exists and every walsender is held, then lets the readers
have the same WAL one after the other, in an order that alternates from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.meter import Meter
from benchmarks.pipeline import Pipeline
from benchmarks.profile import Profiler
from benchmarks.readers import Recvlogical, running_tap
from benchmarks.report import Bar, Measurement, best
from benchmarks.stage import Stage, Table, Walsender
from benchmarks.waiting import say, until

TAP_RATIO = 0.75
TAP_CPU_S_PER_MILLION = 6.0
ROAD_RATIO = 0.5
CHAIN_PERCENT = 15.0
CHAIN: tuple[dict[str, object], ...] = (
    {"type": "filter", "fields": [{"path": "quantity", "op": "gte", "value": 0}]},
    {"type": "transform", "mask": [{"columns": ["note"], "keep_last": 4}], "rename": {"title": "name"}},
)
"""What `chain` does to every row: all of them arrive."""
WATERMARK_S = 0.03

Reader = Callable[[], Measurement]


class Throughput:
    """Passes over one stage. It measures each of `pipelines` by its name, and with `alone` the tap without Spark."""

    def __init__(
        self, stage: Stage, table: Table, pipelines: Sequence[Pipeline], *, alone: bool, profiler: Profiler
    ) -> None:
        self._stage, self._table, self._pipelines = stage, table, pipelines
        self._alone, self._profiler = alone, profiler

    def run(self, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
        found: list[Measurement] = []
        for number in range(passes):
            found += self._pass(number, rows)
        return found, _bars(found)

    def _pass(self, number: int, rows: int) -> list[Measurement]:
        slot = publication = f"bench_recvlogical_{number}"
        with ExitStack() as stack:
            # The tap first: what it carries to get warm is not for the others.
            tap = stack.enter_context(running_tap(self._stage, f"tap_{number}", self._table)) if self._alone else None
            stack.enter_context(self._stage.slot(slot, publication, self._table))
            readers: list[Reader] = [
                lambda: Recvlogical(self._stage, slot, publication).measure(rows, self._stage.current_lsn())
            ]
            if tap is not None:
                tap_sender = stack.enter_context(self._stage.held(tap.slot))
                readers.append(lambda: tap.measure(rows, tap_sender, self._profiler))
            for pipeline in self._pipelines:
                sender = stack.enter_context(self._stage.held(pipeline.slot))
                readers.append(partial(self._road, pipeline, rows, sender))
            say(f"pass {number + 1}: writing {rows:,} rows")
            self._table.write(rows)
            return [_told(reader) for reader in (reversed(readers) if number % 2 else readers)]

    def _road(self, pipeline: Pipeline, rows: int, sender: Walsender) -> Measurement:
        """From the release of its walsender until the broker has acknowledged every row."""
        jvms, workers = pipeline.pids("spark jvm"), pipeline.pids("spark workers")
        profiler = self._profiler
        with (
            profiler.threads("spark jvm", jvms[0]),
            profiler.of("spark workers", workers),
            Meter(pipeline.roles() | {sender.pid: "walsender"}) as meter,
        ):
            sender.release()
            until(lambda: pipeline.delivered() >= self._table.written, f"{rows} rows in the topic", every=WATERMARK_S)
        return Measurement(pipeline.name, rows, meter.usage())


def _told(reader: Reader) -> Measurement:
    found = reader()
    say(f"{found.name}: {found.rows_per_s:,.0f} rows/s, others used {found.usage.other_cores:.2f} cores")
    return found


def _bars(found: list[Measurement]) -> list[Bar]:
    reference = best(found, "pg_recvlogical").rows_per_s
    names = {each.name for each in found}
    bars: list[Bar] = []
    if "tap" in names:
        tap = best(found, "tap")
        cpu = min(each.usage.cpu_s["tap"] / each.rows * 1e6 for each in found if each.name == "tap")
        bars.append(Bar("tap / pg_recvlogical", tap.rows_per_s / reference, "≥", TAP_RATIO))
        bars.append(Bar("tap CPU per million rows", cpu, "≤", TAP_CPU_S_PER_MILLION, "CPU-s"))
    if "road" in names:
        bars.append(Bar("road / pg_recvlogical", best(found, "road").rows_per_s / reference, "≥", ROAD_RATIO))
    if "chain" in names:
        cost = 1 - best(found, "chain").rows_per_s / best(found, "road").rows_per_s
        bars.append(Bar("cost of filter, mask and rename", 100 * cost, "≤", CHAIN_PERCENT, "% of the road"))
    return bars
