"""`python -m benchmarks`: run them, print a table and JSON.

The exit code says whether it could measure, not whether a bar was met: other work on the machine has a say
in that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.fanout import fanout
from benchmarks.freshness import freshness
from benchmarks.kafka import kafka
from benchmarks.lake import FORMATS, lake
from benchmarks.latency import idle, latency
from benchmarks.load import load
from benchmarks.memory import memory
from benchmarks.mirror import mirror
from benchmarks.pipeline import open_pipeline
from benchmarks.profile import Profiler
from benchmarks.report import Bar, Measurement, Report
from benchmarks.sinks import sinks
from benchmarks.snapshot import snapshot
from benchmarks.stage import Stage, Table, open_stage
from benchmarks.steps import debezium, javascript
from benchmarks.throughput import CHAIN, Throughput
from benchmarks.trickle import trickle
from benchmarks.waiting import say
from tailrace.errors import TailraceError
from tailrace.testing.servers import KafkaBroker

SHORT = ("tap", "road", "latency", "idle", "snapshot", "debezium", "javascript")
LONG = ("chain", "kafka", "trickle", "load", "memory", "lake", "mirror", "freshness", "sinks", "fanout")
NAMES = (*SHORT, *LONG)
Found = tuple[Iterable[Measurement], Iterable[Bar]]
ON_A_STAGE: dict[str, Callable[[Stage, argparse.Namespace, Profiler], Found]] = {
    "snapshot": lambda stage, given, _: snapshot(stage, given.rows, given.passes),
    "trickle": lambda stage, given, _: trickle(stage, given.seconds, given.warm_up),
    "debezium": lambda stage, given, _: debezium(stage, given.rows, given.passes),
    "javascript": lambda stage, given, _: javascript(stage, given.rows, given.passes),
    "load": lambda stage, given, profiler: load(stage, given.rows, given.passes, given.formats, profiler),
    "memory": lambda stage, given, _: memory(stage, given.rows),
    "mirror": lambda stage, given, _: mirror(stage, given.rows, given.passes),
    "freshness": lambda stage, given, _: (freshness(stage, given.formats, given.seconds, given.warm_up), ()),
    "fanout": lambda stage, given, _: fanout(stage, given.rows, given.passes),
}
"""Each has a PostgreSQL of its own."""
WITHOUT_A_SOURCE: dict[str, Callable[[Path, argparse.Namespace], Found]] = {
    "kafka": lambda folder, given: kafka(folder, given.rows, given.passes),
    "lake": lambda folder, given: lake(folder, given.rows, given.passes, tuple(given.formats)),
    "sinks": lambda folder, given: sinks(folder, given.rows, given.passes),
}
"""Each begins with a log."""
ON_THE_STREAM = {"tap", "road", "chain", "latency", "idle"}
NEED_PIPELINE = {"road", "chain", "latency", "idle"}
WIDTH = 180


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    names = set(options.names) or {name for name in NAMES if options.all or name not in LONG}
    try:
        with _folder(options.keep) as folder:
            report = _run(names, options, folder)
    except TailraceError as error:
        say(f"{error.code}: {error}\n  {error.hint}")
        return error.exit_code
    text = report.as_json()
    report.show(Console(width=None if sys.stdout.isatty() else WIDTH))
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 0


def _run(names: set[str], options: argparse.Namespace, folder: Path) -> Report:
    report = Report(options.rows)
    profiler = Profiler(folder, options.profile)
    if names & ON_THE_STREAM:
        _run_on_standard_table(names, options, folder, report, profiler)
    for name, measured in ON_A_STAGE.items():
        if name in names:
            with open_stage(folder) as stage:
                report.add(*measured(stage, options, profiler))
    for name, measure in WITHOUT_A_SOURCE.items():
        if name in names:
            report.add(*measure(folder, options))
    report.profiles = profiler.shares
    return report


def _run_on_standard_table(
    names: set[str], options: argparse.Namespace, folder: Path, report: Report, profiler: Profiler
) -> None:
    with ExitStack() as stack:
        stage = stack.enter_context(open_stage(folder))
        table = Table(stage.dsn, "standard")
        broker = stack.enter_context(KafkaBroker()) if names & NEED_PIPELINE else None
        pipeline = stack.enter_context(open_pipeline(stage, broker, table)) if broker is not None else None
        if names & {"tap", "road", "chain"}:
            roads = [pipeline] if pipeline is not None and names & {"road", "chain"} else []
            if broker is not None and "chain" in names:
                roads.append(stack.enter_context(open_pipeline(stage, broker, table, "chain", CHAIN)))
            measured = Throughput(stage, table, roads, alone="tap" in names, profiler=profiler)
            report.add(*measured.run(options.rows, options.passes))
        if pipeline is not None and "latency" in names:
            report.add(*latency(pipeline, options.seconds, options.warm_up))
        if pipeline is not None and "idle" in names:
            report.add(*idle(pipeline, options.seconds))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=keep.absolute()))
        say(f"logs are kept in {folder}")
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, as ratios on the same WAL.")
    parser.add_argument("names", nargs="*", choices=NAMES, metavar="NAME", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true", help=f"those that take minutes too: {', '.join(LONG)}")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a throughput pass (%(default)s)")
    parser.add_argument("--passes", type=int, default=2, help="throughput passes; the best counts (%(default)s)")
    parser.add_argument(
        "--warm-up",
        type=float,
        default=120.0,
        help="seconds before the window of latency, trickle and freshness (%(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="window of latency, idle, trickle and freshness (%(default)s)"
    )
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=FORMATS, help="of load, lake and freshness (all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--profile", action="store_true", help="say where the CPU time goes; slows what it measures")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there and leave logs behind")
    return parser


if __name__ == "__main__":
    sys.exit(main())
