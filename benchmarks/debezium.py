"""`debezium`: what Debezium's values cost a task that reads the log, on one core.

The standard table's rows are in a log. Reading them as batches between processors is measured with and without the
step that rewrites keys and images: the ratio says what a road pays, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from benchmarks.meter import Meter
from benchmarks.readers import running_tap
from benchmarks.report import Bar, Measurement, best
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace.changelog import LogReader, read_slice
from tailrace.contracts import Place
from tailrace.processors.chain import processed
from tailrace.render.debezium import DebeziumValues
from tailrace.supervisor.layout import Layout

ROWS_PER_S = 75_000
"""On a core; two of them carry twice as many."""
RATIO = 0.2
"""Of the rows that a core reads in a second, how many it also rewrites."""
READ, WRITTEN = "changes read", "debezium values"

Step = Callable[[pa.RecordBatch], pa.RecordBatch]


def debezium(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    table = Table(stage.dsn, "debezium")
    with running_tap(stage, "debezium", table) as tap:
        say(f"debezium: writing {rows:,} rows")
        table.write(rows)
        until(lambda: tap.rows() >= rows, "the log has them", seconds=600)
    log = LogReader(Layout(stage.folder / "debezium").log("debezium"))
    place = Place("bench", "bench", "postgresql", log.schemas)
    step = DebeziumValues(id="values").open(place)
    step(processed(next(_batches(log))))  # compiled, or loaded
    found: list[Measurement] = []
    for _ in range(passes):
        found += [_measured(READ, log, processed), _measured(WRITTEN, log, lambda batch: step(processed(batch)))]
        say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} rows/s" for each in found[-2:]))
    table.close()
    read, written = best(found, READ), best(found, WRITTEN)
    alone = written.rows / (written.usage.wall_s - read.usage.wall_s)
    ratio = written.rows_per_s / read.rows_per_s
    return found, [
        Bar("debezium values, on a core", alone, "≥", ROWS_PER_S, "rows/s"),
        Bar("debezium values / changes read", ratio, "≥", RATIO),
    ]


def _batches(log: LogReader) -> Iterator[pa.RecordBatch]:
    for piece in log.slices(log.earliest, log.end, 1):
        yield from read_slice(piece)


def _measured(name: str, log: LogReader, step: Step) -> Measurement:
    with Meter({}) as meter:
        rows = sum(step(batch).num_rows for batch in _batches(log))
    return Measurement(name, rows, meter.usage())
