"""`lake`: a batch of mixed changes into a large table, as a share of a MERGE written by hand over the same log range.

70 % updates, 20 % inserts, 10 % deletes; half of the updates go to one key in a hundred. The table has five times as
many rows as there are changes. Both sides read the log through the same source in one batch, in sessions set up alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.meter import Meter
from benchmarks.report import Bar, Measurement
from benchmarks.waiting import say
from tailrace.change import CHANGES, LANES, OPS
from tailrace.changelog import Limits, LogWriter
from tailrace.contracts import ROWS, TXS, Capture, Delivery, Frame, Span
from tailrace.schema import Column, TableSchema
from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.evolve import create
from tailrace.sinks.lake.target import Target, viewed
from tailrace.spark.libraries import settings_for
from tailrace.spark.session import open_session
from tailrace.spark.tables import SparkLog

RATIO = 0.9
FORMATS = ("delta", "iceberg2", "iceberg3")
TIMES = 5
INSERTS, UPDATES, HOT = 0.2, 0.9, 0.5
"""Below the first share of changes are inserts, below the second updates; so many of these go to hot keys."""
FRAME_ROWS = 50_000
WARM_UP = 300_000
"""Changes of the first batch: enough for Java to compile what both sides run, which else the one that is first pays."""
DELIVERY = Delivery("bench", "bench", "bench")
TYPES = {
    "id": "bigint",
    "quantity": "integer",
    "price": "numeric(12,2)",
    "title": "text",
    "note": "text",
    "active": "boolean",
    "changed": "timestamp with time zone",
    "day": "date",
    "token": "uuid",
    "amount": "double precision",
}
TABLE = TableSchema(1, "bench", "public", "items", tuple(Column(n, t) for n, t in TYPES.items()), ("id",))
_ROW = (
    "id, cast(id % 1000 as int) quantity, cast((id % 10000000) / 100.0 as decimal(12,2)) price, "
    "concat('item number ', id) title, md5(cast(id as string)) note, id % 3 = 0 active, "
    "timestamp_seconds(1704067200 + id) changed, date_add(date'2024-01-01', cast(id % 700 as int)) day, "
    "md5(cast(id as string)) token, id / 7.0d amount"
)
READ = (
    "id bigint, quantity int, price decimal(12,2), title string, note string, active boolean, changed timestamp, "
    "day date, token string, amount double"
)


def lake(
    folder: Path, rows: int, passes: int, formats: tuple[str, ...] = FORMATS
) -> tuple[list[Measurement], list[Bar]]:
    found: list[Measurement] = []
    bars: list[Bar] = []
    path = folder / "lake-log"
    say(f"lake: writing a log of {WARM_UP + passes * rows:,} changes")
    write_log(path, WARM_UP + passes * rows, TIMES * rows)
    sinks = {
        (kind, mode): sink_of(kind, document(kind, mode, folder)) for kind in formats for mode in ("upsert", "append")
    }
    spark = open_session(folder / "lake-spark.log", driver_memory="6g", conf=settings_for(sinks.values()))
    try:
        for (kind, mode), sink in sinks.items():
            found += _pair(spark, sink, path, folder, rows, passes, f"{kind} {mode}")
            ours, hand = (_seconds(found, f"{kind} {mode}{side}") for side in ("", " by hand"))
            bars.append(Bar(f"{kind} {mode} / by hand", hand / ours, "≥", RATIO))
    finally:
        spark.stop()
    return found, bars


def _seconds(found: list[Measurement], name: str) -> float:
    """Of all passes: single batches differ by a fifth, so the best of each side would compare two strokes of luck."""
    return sum(each.usage.wall_s for each in found if each.name == name)


def _pair(
    spark: SparkSession, sink: LakeSink, path: Path, folder: Path, rows: int, passes: int, name: str
) -> list[Measurement]:
    """By hand and ours, each on a table of its own and in turns; a smaller batch of both comes first."""
    columns = [*map(F.col, CHANGES.names), F.lit("e").alias("event_id")]
    log = SparkLog(spark, path, columns, Limits(), "bench", spark.sparkContext.defaultParallelism)
    hand, ours = (sink.target(spark, f"{side}__items", f"bench/{sink.id}/{log.log_id}") for side in ("hand", "public"))
    for target in (hand, ours):
        say(f"{name}: a table of {TIMES * rows:,} rows")
        _fill(target, sink, log.log_id, TIMES * rows)
    state = folder / f"state-{sink.id}"
    state.mkdir()
    keeper = sink.keeper(spark, DELIVERY, log, state)

    def by_hand(start: int, end: int) -> None:
        with viewed(log.read(start, end, TABLE.id)) as view:
            _by_hand(hand, hand.session.table(view), sink.write_mode)

    sides: list[tuple[str, Callable[[int, int], object]]] = [
        (f"{name} by hand", by_hand),
        (name, lambda start, end: keeper.keep(Span(log.log_id, start, end))),
    ]
    found: list[Measurement] = []
    for start, end in ((0, WARM_UP), *((WARM_UP + n * rows, WARM_UP + (n + 1) * rows) for n in range(passes))):
        log.contents(start, end)  # so that not the first of both alone reads the log from the disk
        for side, apply in sides:
            with Meter({}) as meter:
                apply(start, end)
            found.append(Measurement(side, end - start, meter.usage()))
        say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} changes/s" for each in found[-2:]))
        sides.reverse()
    _refuse_difference(hand, ours, sink.write_mode)
    return found[2:]


def _by_hand(target: Target, changes: DataFrame, mode: str) -> None:
    """What a good engineer writes for this table."""
    with viewed(changes) as view:
        if mode == "append":
            target.execute(
                f"INSERT INTO {target.sql_name} SELECT r.*, op, timestamp_micros(ts_us), tx_id, position, event_id, "
                f"seq, unchanged FROM (SELECT *, from_json(coalesce(after, before), '{READ}') r FROM {view})"
            )
            return
        columns = [name for name in TYPES if name != "id"]
        target.execute(
            f"MERGE INTO {target.sql_name} t USING (SELECT last.op, from_json(coalesce(last.after, key), '{READ}') r "
            f"FROM (SELECT key, max_by(struct(op, after), seq) last FROM {view} GROUP BY key)) s ON t.id = s.r.id "
            "WHEN MATCHED AND s.op = 'd' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.r.{name}' for name in columns)} "
            f"WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(TYPES)}) "
            f"VALUES ({', '.join(f's.r.{name}' for name in TYPES)})"
        )


def _fill(target: Target, sink: LakeSink, log_id: str, rows: int) -> None:
    create(target, TABLE, sink, log_id, 0)
    if sink.write_mode == "upsert":
        target.execute(f"INSERT INTO {target.sql_name} SELECT {_ROW} FROM range(0, {rows}, 1, 8)")


def _refuse_difference(hand: Target, ours: Target, mode: str) -> None:
    order = "id" if mode == "upsert" else "_seq"
    digest = f"sum(cast(xxhash64({order}, title, price) AS decimal(38, 0)))"
    sums = [
        target.session.sql(f"SELECT count(*), {digest} FROM {target.sql_name}").collect() for target in (hand, ours)
    ]
    if sums[0] != sums[1]:
        raise AssertionError(f"by hand and ours differ: {sums}")


def sink_of(kind: str, config: dict[str, object]) -> LakeSink:
    made = DeltaSink if kind == "delta" else IcebergSink
    return made.from_document(config)


def document(kind: str, mode: str, folder: Path) -> dict[str, object]:
    """A sink's configuration."""
    name = f"{kind}-{mode}"
    common: dict[str, object] = {"id": name, "write_mode": mode}
    if kind == "delta":
        return {**common, "path": str(folder / name)}
    where = {"warehouse": str(folder / name), "catalog_uri": f"sqlite:///{folder}/{name}.db"}
    return {**common, **where, "format_version": int(kind[-1])}


def write_log(path: Path, rows: int, keys: int) -> None:
    """Changes of keys below `keys`, and of new ones."""
    chance, fresh = random.Random(1), keys
    with _writer(path) as writer:
        for first in range(0, rows, FRAME_ROWS):
            count = min(FRAME_ROWS, rows - first)
            changes = []
            for _ in range(count):
                kind = chance.random()
                if kind < INSERTS:
                    changes.append(("c", fresh))
                    fresh += 1
                else:
                    hot = chance.random() < HOT
                    key = chance.randrange(keys // 100) * 100 + 1 if hot and kind < UPDATES else chance.randrange(keys)
                    changes.append(("d" if kind >= UPDATES else "u", key))
            writer.append(Capture(_frame(changes, first), {"lsn": str(first)}, (TABLE,)))


@contextmanager
def _writer(path: Path) -> Iterator[LogWriter]:
    writer = LogWriter(path, "bench")
    try:
        yield writer
    finally:
        writer.close()


def _image(key: int, number: int) -> str:
    return json.dumps(
        {
            "id": key, "quantity": number % 1000, "price": f"{number % 10000000 / 100:.2f}",
            "title": f"item number {number}", "note": "e4da3b7fbbce2345d7772b0674a318d5", "active": number % 3 == 0,
            "changed": "2024-02-29T12:00:00.000001Z", "day": "2024-02-29",
            "token": "e4da3b7fbbce2345d7772b0674a318d5", "amount": number / 8,
        },
        separators=(",", ":"),
    )  # fmt: skip


def _frame(changes: list[tuple[str, int]], first: int) -> Frame:
    lanes = np.array([key % LANES for _, key in changes])
    order = np.argsort(lanes, kind="stable")
    mine = [changes[place] for place in order]
    keys = [f'{{"id":{key}}}' for _, key in mine]
    none = [None] * len(mine)
    columns = {
        "row": order.astype(np.int32),
        "op": [OPS.index(op) for op, _ in mine],
        "schema_id": [TABLE.id] * len(mine),
        "tx": [0] * len(mine),
        "ordinal": order.astype(np.int32),
        "key": keys,
        "before": [text if op == "d" else None for (op, _), text in zip(mine, keys, strict=True)],
        "after": [
            None if op == "d" else _image(key, first + int(place)) for (op, key), place in zip(mine, order, strict=True)
        ],
        "unchanged": none,
        "headers": none,
    }
    txs = {
        "tx_id": [str(first)],
        "position": [f"0/{first:X}"],
        "ts_us": [1_700_000_000_000_000 + first],
        "end_row": [len(mine)],
        "end_bytes": [len(mine) * 250],
    }
    counts = np.bincount(lanes, minlength=LANES)
    offsets = (0, *np.cumsum(counts).tolist())
    return Frame(pa.RecordBatch.from_pydict(columns, ROWS), pa.RecordBatch.from_pydict(txs, TXS), offsets)
