"""`debezium` and `javascript`: what a step of a chain costs a task that reads the log, on one core.

The standard table's rows are in a log. Reading them as batches between processors is measured with and without the
step: the one rewrites keys and images as Debezium has them, the other calls a script for every change. The ratio says
what a road pays, whatever the machine.
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
from tailrace.contracts import BatchProcessor, Place
from tailrace.processors.chain import processed
from tailrace.processors.javascript import JavaScriptProcessor
from tailrace.render.debezium import DebeziumValues
from tailrace.supervisor.layout import Layout

DEBEZIUM_ROWS_PER_S = 75_000
"""On a core; two of them carry twice as many."""
DEBEZIUM_RATIO = 0.2
"""Of the rows that a core reads in a second, how many it also rewrites."""
EVENTS_PER_S = 50_000
"""Through a script, which has a process of its own."""
READ, WRITTEN, CALLED = "changes read", "debezium values", "javascript"
SCRIPT = """
function processBatch(events) {
  for (const event of events) {
    event.tags.push(event.after.quantity > 500 ? 'many' : 'few');
    event.after.total = event.after.price * event.after.quantity;
  }
  return events;
}"""
"""It reads two columns and adds one, and a tag."""

Step = Callable[[pa.RecordBatch], pa.RecordBatch]


def debezium(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    found = _measure(stage, WRITTEN, DebeziumValues(id="values"), rows, passes)
    read, written = best(found, READ), best(found, WRITTEN)
    ratio = written.rows_per_s / read.rows_per_s
    return found, [
        Bar("debezium values, on a core", _alone(read, written), "≥", DEBEZIUM_ROWS_PER_S, "rows/s"),
        Bar("debezium values / changes read", ratio, "≥", DEBEZIUM_RATIO),
    ]


def javascript(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    found = _measure(stage, CALLED, JavaScriptProcessor(id="script", inline=SCRIPT), rows, passes)
    alone = _alone(best(found, READ), best(found, CALLED))
    return found, [Bar("events through a script", alone, "≥", EVENTS_PER_S, "rows/s")]


def _measure(stage: Stage, name: str, processor: BatchProcessor, rows: int, passes: int) -> list[Measurement]:
    """`changes read`, and with the processor behind it `name`, in turns."""
    log = _log(stage, name.partition(" ")[0], rows)
    step = processor.open(Place("bench", "bench", "postgresql", log.schemas))
    step(processed(next(_batches(log))))  # compiled, or loaded
    found: list[Measurement] = []
    for _ in range(passes):
        found += [_measured(READ, log, processed), _measured(name, log, lambda batch: step(processed(batch)))]
        say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} rows/s" for each in found[-2:]))
    return found


def _log(stage: Stage, name: str, rows: int) -> LogReader:
    """One with so many rows of the standard table."""
    table = Table(stage.dsn, name)
    with running_tap(stage, name, table) as tap:
        say(f"{name}: writing {rows:,} rows")
        table.write(rows)
        until(lambda: tap.rows() >= rows, "the log has them", seconds=600)
    table.close()
    return LogReader(Layout(stage.folder / name).log(name))


def _alone(read: Measurement, more: Measurement) -> float:
    """Rows a second of the step by itself."""
    return more.rows / (more.usage.wall_s - read.usage.wall_s)


def _batches(log: LogReader) -> Iterator[pa.RecordBatch]:
    for piece in log.slices(log.earliest, log.end, 1):
        yield from read_slice(piece)


def _measured(name: str, log: LogReader, step: Step) -> Measurement:
    with Meter({}) as meter:
        rows = sum(step(batch).num_rows for batch in _batches(log))
    return Measurement(name, rows, meter.usage())
