"""`load`: a table's first load into an empty lake table, as a share of a `spark.read.jdbc` job of the same rows.

Twice the rows of a throughput pass. Ours is `tailrace run`, asked for a snapshot while it streams, until the lake's
table has every row; the job reads the table in eight ranges of its key and writes it in one statement, in a Spark
session set up like ours. Both have done the same with a small table before: starting is not part of any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from benchmarks.freshness import lake_offset
from benchmarks.lake import document, sink_of
from benchmarks.meter import Meter
from benchmarks.pipeline import Running
from benchmarks.profile import Profiler
from benchmarks.report import Bar, Measurement, best
from benchmarks.stage import COLUMNS, Stage, Table
from benchmarks.waiting import say, until
from tailrace.changelog import LogReader, head
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import SetupError
from tailrace.machine.maven import fetch_jars
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.target import Making
from tailrace.spark.libraries import settings_for
from tailrace.spark.session import open_session

RATIO = 0.7
TIMES = 2
SMALL = 20_000
RANGES = 8
FETCHED = 10_000
"""Rows of one answer of the database to the job: its driver's default is all of a range."""
LOAD_S = 1800.0
DRIVER = ("org.postgresql", "postgresql", "42.7.8")


def load(
    stage: Stage, rows: int, passes: int, formats: Sequence[str], profiler: Profiler
) -> tuple[list[Measurement], list[Bar]]:
    small, large = Table(stage.dsn, "load_small"), Table(stage.dsn, "load_large")
    say(f"load: writing {TIMES * rows:,} rows")
    small.write(SMALL)
    large.write(TIMES * rows, per_transaction=100_000)
    stage.connection.execute("VACUUM ANALYZE load_large")
    stage.connection.execute("CHECKPOINT")
    found: list[Measurement] = []
    bars: list[Bar] = []
    for kind in formats:
        for number in range(passes):
            pair = _pair(stage, kind, number, small, large, profiler)
            found += pair
            say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} rows/s" for each in pair))
        ratio = best(found, f"{kind} load").rows_per_s / best(found, f"{kind} jdbc").rows_per_s
        bars.append(Bar(f"{kind} load / spark.read.jdbc", ratio, "≥", RATIO))
    small.close()
    large.close()
    return found, bars


def _pair(stage: Stage, kind: str, number: int, small: Table, large: Table, profiler: Profiler) -> list[Measurement]:
    """Ours, then the job, each into a table of its own; afterwards both must have the same rows."""
    place = stage.folder / f"load-{number}"
    place.mkdir(exist_ok=True)
    config = document(kind, "upsert", place)
    ours = _ours(stage, kind, config, f"load_{kind}_{number}", small, large, profiler)
    sink = sink_of(kind, config)
    jar = next(fetch_jars(*DRIVER, transitive=False).glob("*.jar"))
    settings = settings_for([sink])
    settings["spark.jars"] += f",{jar}"
    spark = open_session(stage.folder / "load-spark.log", conf=settings)
    try:
        _job(spark, stage, sink, small)
        with Meter(stage.roles()) as meter:
            _job(spark, stage, sink, large)
        _refuse_difference(spark, sink, large)
    finally:
        spark.stop()
    return [ours, Measurement(f"{kind} jdbc", large.written, meter.usage())]


def _ours(
    stage: Stage, kind: str, config: dict[str, object], name: str, small: Table, large: Table, profiler: Profiler
) -> Measurement:
    run = Running(stage, small, name, kind.rstrip("23"), {**config, "id": "lake"}, [large])
    try:
        run.wait_for_stream()
        _read(run, small)
        with (
            profiler.threads(f"{kind} load, spark jvm", run.pids("spark jvm")[0]),
            profiler.of(f"{kind} load, spark workers", run.pids("spark workers")),
            Meter(run.roles()) as meter,
        ):
            _read(run, large)
    finally:
        run.close()
        stage.forget(run.slot)
    return Measurement(f"{kind} load", large.written, meter.usage())


def _read(run: Running, table: Table) -> None:
    """Ask for a snapshot of a table, and wait until the lake has it."""
    ledger, log = SnapshotLedger(Store(run.layout.store)), run.layout.log(run.name)
    asked = [TableRequest("public", table.name)]
    number = ledger.request(run.name, "bench", asked, log_id=LogReader(log).log_id, since=0)
    until(lambda: run.is_alive() and ledger.run(number).state != "active", "the snapshot", seconds=LOAD_S, every=0.2)
    say(f"{run.name}: {table.name} is in the log")
    until(lambda: run.is_alive() and lake_offset(run) >= head(log), "the lake has it", seconds=LOAD_S, every=0.2)


def _job(spark: SparkSession, stage: Stage, sink: LakeSink, table: Table) -> None:
    """What an engineer without us writes."""
    given = conninfo_to_dict(stage.dsn)
    target = sink.target(spark, f"job__{table.name}", "bench/job/none")
    rows = target.session.read.jdbc(
        f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}",
        f"public.{table.name}",
        column="id",
        lowerBound=1,
        upperBound=table.written,
        numPartitions=RANGES,
        properties={
            "user": str(given["user"]),
            "password": str(given["password"]),
            "driver": "org.postgresql.Driver",
            "fetchsize": str(FETCHED),
        },
    )
    target.create(Making({each.name: each.dataType for each in rows.schema.fields}, (), (), {}, None))
    target.append(rows, 1)


def _refuse_difference(spark: SparkSession, sink: LakeSink, table: Table) -> None:
    digest = f"sum(cast(xxhash64({', '.join(COLUMNS)}) AS decimal(38, 0)))"
    targets = [sink.target(spark, f"{side}__{table.name}", "bench/job/none") for side in ("job", "public")]
    sums = [each.session.sql(f"SELECT count(*), {digest} FROM {each.sql_name}").collect() for each in targets]
    if sums[0] != sums[1]:
        raise SetupError("benchmark.rows", f"the job's table and ours differ: {sums}", hint="please report it")
