"""`mirror`: a batch of mixed changes into a large table of PostgreSQL, as a share of a COPY and a MERGE written by hand
over the same log range.

The changes are those of `lake`. The hand copies them as they are into a temporary table, lets PostgreSQL choose the
last of each key and parse its JSON, and merges that in the same transaction. Both sides read the log by the same
reader, into tables of one server, in turns.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.lake import DELIVERY, TABLE, TIMES, TYPES, write_log
from benchmarks.meter import Meter
from benchmarks.report import Bar, Measurement
from benchmarks.stage import Stage
from benchmarks.waiting import say
from tailrace.change import CHANGES
from tailrace.changelog import Limits
from tailrace.contracts import Span
from tailrace.errors import SetupError
from tailrace.sinks.postgres import PostgresMirror
from tailrace.spark.session import open_session
from tailrace.spark.tables import SparkLog

RATIO = 0.5
WARM_UP = 50_000
_KINDS = {name: "text" if kind == "uuid" else kind for name, kind in TYPES.items()}
"""Tokens in the log are not spelled as PostgreSQL spells them."""
_FILL = """
INSERT INTO {table} SELECT n, n % 1000, (n % 10000000) / 100.0, 'item number ' || n, md5(n::text), n % 3 = 0,
    to_timestamp(1704067200 + n), date '2024-01-01' + (n % 700)::int, md5(n::text), n / 7.0
FROM generate_series(0, {rows} - 1) n"""


def mirror(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    path = stage.folder / "mirror-log"
    say(f"mirror: writing a log of {WARM_UP + passes * rows:,} changes")
    write_log(path, WARM_UP + passes * rows, TIMES * rows)
    spark = open_session(stage.folder / "mirror-spark.log", driver_memory="4g")
    try:
        found = _pair(spark, stage, path, rows, passes)
    finally:
        spark.stop()
    ours, hand = (sum(each.usage.wall_s for each in found if each.name == f"mirror{side}") for side in ("", " by hand"))
    return found, [Bar("mirror / by hand", hand / ours, "≥", RATIO)]


def _pair(spark: SparkSession, stage: Stage, path: Path, rows: int, passes: int) -> list[Measurement]:
    columns = [F.col(name) for name in CHANGES.names]
    log = SparkLog(spark, path, columns, Limits(), "bench", spark.sparkContext.defaultParallelism)
    for table in ("hand", "items"):
        say(f"mirror: a table of {TIMES * rows:,} rows")
        _fill(stage, table, TIMES * rows)
    sink = PostgresMirror.from_document({"id": "bench", "mode": "mirror", "dsn": stage.dsn, "statement_timeout": "1h"})
    state = stage.folder / "mirror-state"
    state.mkdir()
    keeper = sink.keeper(spark, DELIVERY, log, state)
    sides: list[tuple[str, Callable[[int, int], object]]] = [
        ("mirror by hand", lambda start, end: _by_hand(log, stage, start, end)),
        ("mirror", lambda start, end: keeper.keep(Span(log.log_id, start, end))),
    ]
    found: list[Measurement] = []
    for start, end in ((0, WARM_UP), *((WARM_UP + n * rows, WARM_UP + (n + 1) * rows) for n in range(passes))):
        log.contents(start, end)  # so that not the first of both alone reads the log from the disk
        for side, apply in sides:
            stage.connection.execute("CHECKPOINT")
            with Meter(stage.roles()) as meter:
                apply(start, end)
            found.append(Measurement(side, end - start, meter.usage()))
        say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} changes/s" for each in found[-2:]))
        sides.reverse()
    _refuse_difference(stage)
    return found[2:]


def _by_hand(log: SparkLog, stage: Stage, start: int, end: int) -> None:
    """What a good engineer writes for this table."""
    others = [name for name in TYPES if name != "id"]
    declared = ", ".join(f"{name} {kind}" for name, kind in _KINDS.items())
    with psycopg.connect(stage.dsn) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE s (seq bigint, op text, key text, image json) ON COMMIT DROP")
        with cursor.copy("COPY s FROM STDIN (FORMAT csv)") as copy:
            for batch in log.batches(start, end, TABLE.id):
                copy.write(_as_csv(batch))
        cursor.execute("ANALYZE s")
        cursor.execute(
            (
                "MERGE INTO hand t USING (SELECT op, r.* FROM "
                "(SELECT DISTINCT ON (key) op, image FROM s ORDER BY key, seq DESC) l, "
                f"json_to_record(image) AS r({declared})) s ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in others)} "
                f"WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(TYPES)}) "
                f"VALUES ({', '.join(f's.{name}' for name in TYPES)})"
            ).encode()
        )


def _as_csv(batch: pa.RecordBatch) -> memoryview:
    images = pc.coalesce(batch.column("after"), batch.column("key"))
    columns = [*(batch.column(name) for name in ("seq", "op", "key")), images]
    text = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False)
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, ["seq", "op", "key", "image"]), text, options)
    return text.getbuffer()


def _fill(stage: Stage, table: str, rows: int) -> None:
    declared = ", ".join(f"{name} {kind}" for name, kind in _KINDS.items())
    stage.connection.execute(f"CREATE TABLE {table} ({declared}, PRIMARY KEY (id))".encode())
    stage.connection.execute(_FILL.format(table=table, rows=rows).encode())
    stage.connection.execute(f"VACUUM ANALYZE {table}".encode())


def _refuse_difference(stage: Stage) -> None:
    """Both sides must have the same rows."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"
    sums = [stage.connection.execute(query.format(table).encode()).fetchone() for table in ("hand", "items")]
    if sums[0] != sums[1]:
        raise SetupError("benchmark.rows", f"by hand and ours differ: {sums}", hint="please report it")
