from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tailrace.config import DebeziumEnvelope
from tailrace.contracts import Gather, Span
from tailrace.errors import SinkError
from tailrace.sinks.file import FileSink
from tailrace.sinks.file.layout import table_directory
from tailrace.testing.suites.sinks import (
    DELIVERY,
    LOG,
    Change,
    Received,
    SinkSuite,
    batch_for,
    deliver,
    span_of,
    versions,
    write,
)


def files(path: Path, suffix: str = "jsonl") -> list[Path]:
    """Table by table, in the order of their names: the order of delivery."""
    found = (file for file in path.rglob(f"*.{suffix}") if "_tailrace" not in file.parts)
    return sorted(found, key=lambda file: (file.parents[1].name, file.name))


def lines(path: Path) -> list[str]:
    return [line for file in files(path) for line in file.read_text().split("\n")[:-1]]


class TestFileSink(SinkSuite):
    repeats = "absorbed"
    notes_letters = True

    @pytest.fixture
    def sink(self, tmp_path: Path) -> FileSink:
        return FileSink(id="files", path=tmp_path / "out")

    @pytest.fixture
    def received(self, sink: FileSink) -> Received:
        return lambda: lines(sink.path)


class TestParquetFileSink(SinkSuite):
    repeats = "absorbed"
    notes_letters = True

    @pytest.fixture
    def sink(self, tmp_path: Path) -> FileSink:
        return FileSink(id="files", path=tmp_path / "out", format="parquet")

    @pytest.fixture
    def received(self, sink: FileSink) -> Received:
        def read() -> Iterator[str]:
            for file in files(sink.path, "parquet"):
                for row in pq.read_table(file).to_pylist():
                    image = json.loads(row["after"])
                    yield Change(row["seq"], image["id"], image["n"], text=image["text"]).value

        return lambda: list(read())


class TestCompressedFileSink(SinkSuite):
    repeats = "absorbed"
    notes_letters = True

    @pytest.fixture(params=["gzip", "zstd"])
    def sink(self, tmp_path: Path, request: pytest.FixtureRequest) -> FileSink:
        return FileSink(id="files", path=tmp_path / "out", compression=request.param)

    @pytest.fixture
    def received(self, sink: FileSink) -> Received:
        ending = {"gzip": "gz", "zstd": "zst"}[sink.compression or ""]
        codec: Literal["gzip", "zstd"] = "gzip" if ending == "gz" else "zstd"

        def read() -> Iterator[str]:
            for file in files(sink.path, f"jsonl.{ending}"):
                with pa.CompressedInputStream(pa.OSFile(str(file), "rb"), codec) as content:
                    yield from content.read().decode().split("\n")[:-1]

        return lambda: list(read())


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    sink = FileSink(id="files", path=tmp_path / "out")
    sink.prepare(DELIVERY)
    return sink


MIDNIGHT = 1_767_225_600_000_000
HOUR = 3_600_000_000


def test_files_are_per_table_and_commit_day_and_named_by_offsets(sink: FileSink) -> None:
    changes = [
        Change(10, 0, 0, ts_us=MIDNIGHT - 1),
        Change(11, 0, 1, ts_us=MIDNIGHT),
        Change(12, 0, 0, table="items", ts_us=MIDNIGHT),
    ]
    deliver(sink, changes, tasks=1)
    name = f"{10:019d}-{13:019d}-0000"
    assert [str(file.relative_to(sink.path)) for file in files(sink.path)] == [
        f"public.items/2026-01-01/{name}-000000.jsonl",
        f"public.orders/2025-12-31/{name}-000000.jsonl",
        f"public.orders/2026-01-01/{name}-000001.jsonl",
    ]
    assert lines(sink.path) == [changes[2].value, changes[0].value, changes[1].value]


@pytest.mark.parametrize("hours", [(0, -1, 0), (-1, 0, -1, 0), (0, 30, -30, 0, 1), (-30, -1, -30, 2, -1, -1, 1)])
def test_names_are_in_the_order_of_delivery_whatever_the_clock_says(sink: FileSink, hours: tuple[int, ...]) -> None:
    """Each version of the rows was committed at another hour around midnight. A folder has changes of its day only."""
    rounds = [versions(n * 6, keys=6, rounds=1) for n in range(len(hours))]
    changes = [
        replace(change, n=n, ts_us=MIDNIGHT + hours[n] * HOUR) for n, each in enumerate(rounds) for change in each
    ]
    middle = len(changes) // 2
    deliver(sink, changes[:middle])
    deliver(sink, changes[middle:])
    found = [json.loads(line) for line in lines(sink.path)]
    for key in range(6):
        assert [row["n"] for row in found if row["id"] == key] == list(range(len(hours)))
    for file in files(sink.path):
        days = {MIDNIGHT + hours[json.loads(line)["n"]] * HOUR for line in file.read_text().split("\n")[:-1]}
        assert {datetime.fromtimestamp(at / 1e6, UTC).date().isoformat() for at in days} == {file.parent.name}
    assert len({file.name for file in files(sink.path)}) == len(files(sink.path)), "a name is a place in the order"


def test_a_midnight_that_lanes_pass_one_after_another_is_two_files(sink: FileSink) -> None:
    """A task gets its rows lane by lane, so the day seems to go back once for each lane."""
    by_lane = [Change(2 * key + n, key, n, ts_us=MIDNIGHT + (n - 1) * HOUR) for key in range(30) for n in range(2)]
    written = sink.open(DELIVERY, Span(LOG, 0, 60), 0).write(iter([batch_for(sink, by_lane)]))
    sink.commit(DELIVERY, Span(LOG, 0, 60), [written.receipt])
    assert [file.parent.name for file in files(sink.path)] == ["2025-12-31", "2026-01-01"]


def test_a_full_file_is_followed_by_a_part(tmp_path: Path) -> None:
    sink = FileSink.from_document({"id": "files", "path": str(tmp_path), "roll": {"bytes": "1KB"}})
    sink.prepare(DELIVERY)
    changes = [Change(seq, 0, seq, text="x" * 600) for seq in range(4)]
    deliver(sink, changes, tasks=1)
    assert [file.name[-9:] for file in files(tmp_path)] == ["0000.jsonl"[-9:], "0001.jsonl"[-9:]]
    assert lines(tmp_path) == [change.value for change in changes]


def test_rolling_is_what_the_query_gathers(tmp_path: Path) -> None:
    assert FileSink(id="files", path=tmp_path).gather() == Gather(5.0, 64_000_000)
    document = {"id": "files", "path": str(tmp_path), "roll": {"every": "1m", "bytes": "1MiB"}}
    assert FileSink.from_document(document).gather() == Gather(60.0, 1_048_576)


def test_a_full_file_is_measured_as_it_is_on_the_disk(tmp_path: Path) -> None:
    sink = FileSink.from_document(
        {"id": "files", "path": str(tmp_path), "compression": "gzip", "roll": {"bytes": "100KB"}}
    )
    sink.prepare(DELIVERY)
    deliver(sink, [Change(seq, 0, seq, text="x" * 900_000) for seq in range(8)], tasks=1)
    (file,) = files(tmp_path, "jsonl.gz")
    assert file.stat().st_size < 100_000
    assert len(gzip.decompress(file.read_bytes()).splitlines()) == 8


@pytest.mark.parametrize(("format_", "codec"), [("jsonl", "snappy"), ("jsonl", "lz4"), ("parquet", "lz4")])
def test_a_codec_that_the_format_has_not_is_refused(tmp_path: Path, format_: str, codec: str) -> None:
    with pytest.raises(ValidationError):
        FileSink.from_document({"id": "files", "path": str(tmp_path), "format": format_, "compression": codec})


def test_text_is_written_as_it_is(sink: FileSink) -> None:
    changes = [Change(0, 0, 0, text="žluť 🚰 \u2028")]
    deliver(sink, changes, tasks=1)
    assert files(sink.path)[0].read_bytes() == changes[0].value.encode() + b"\n"


def test_parquet_holds_the_typed_change(tmp_path: Path) -> None:
    sink = FileSink(id="files", path=tmp_path, format="parquet", envelope=DebeziumEnvelope())
    sink.prepare(DELIVERY)
    deliver(sink, [Change(3, 1, 0)], tasks=1)
    (file,) = files(tmp_path, "parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    (row,) = pq.read_table(file).to_pylist()
    assert row["ts"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert row["captured"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert (row["seq"], row["op"], row["after"]) == (3, "c", '{"id": 1, "n": 0, "text": ""}')
    assert row["event_id"].count("-") == 4
    assert "lane" not in row


@pytest.mark.parametrize(
    ("schema", "table", "directory"),
    [
        ("public", "orders", "public.orders"),
        ("public", "a/../b", "public.a%2F%2E%2E%2Fb"),
        ("a.b", "c", "a%2Eb.c"),
        ("_own", "t", "%5Fown.t"),
        ("public", "größe", "public.gr%C3%B6%C3%9Fe"),
        ("", "audit", "audit"),
        ("", "", "%"),
    ],
)
def test_a_table_name_is_safe_as_a_directory(schema: str, table: str, directory: str) -> None:
    assert table_directory(schema, table) == directory


def test_long_names_stay_different() -> None:
    one, other = (table_directory("ž" * 31, "ž" * 30 + end) for end in "ab")
    assert one != other
    assert max(len(one), len(other)) <= 255


def test_two_sinks_cannot_share_a_directory(sink: FileSink) -> None:
    with pytest.raises(SinkError) as failure:
        FileSink(id="others", path=sink.path).prepare(DELIVERY)
    assert failure.value.code == "sink.path_in_use"


def test_a_lost_ledger_is_noticed_before_anything_is_overwritten(sink: FileSink) -> None:
    changes = versions(0, keys=2, rounds=2)
    deliver(sink, changes)
    before = lines(sink.path)
    (sink.path / "_tailrace" / "shop.files.json").unlink()
    with pytest.raises(SinkError) as failure:
        deliver(sink, changes)
    assert failure.value.code == "sink.already_there"
    assert lines(sink.path) == before


def test_a_second_driver_is_noticed_and_nothing_is_lost(sink: FileSink) -> None:
    changes = versions(0, keys=2, rounds=2)
    receipts = write(sink, changes)
    sink.prepare(DELIVERY)  # the other driver starts, and clears what it takes for leftovers
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, span_of(changes), receipts)
    assert failure.value.code == "sink.rival"
    assert sink.mark(DELIVERY, LOG) == 0
    deliver(sink, changes)
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, span_of(changes), [])
    assert failure.value.code == "sink.rival"


def test_marks_of_several_logs_stand_side_by_side(sink: FileSink) -> None:
    changes = versions(0, keys=2, rounds=2)
    deliver(sink, changes)
    sink.commit(DELIVERY, Span("log-2", 0, 9), [""])
    assert (sink.mark(DELIVERY, LOG), sink.mark(DELIVERY, "log-2")) == (4, 9)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(SinkError) as failure:
        FileSink(id="files", path=tmp_path / "taken").prepare(DELIVERY)
    assert failure.value.code == "sink.refused"
    assert stat.S_ISREG(os.stat(tmp_path / "taken").st_mode)


CRASHING = """
import sys
from pathlib import Path

from tailrace.failpoints import arm, kill_after, _kill_this_process
from tailrace.sinks.file import FileSink
from tailrace.testing.suites.sinks import DELIVERY, deliver, versions

sink = FileSink(id="files", path=Path(sys.argv[1]))
sink.prepare(DELIVERY)
deliver(sink, versions(0, keys=6, rounds=2), tasks=3)
arm(sys.argv[2], kill_after(int(sys.argv[3]), _kill_this_process))
deliver(sink, versions(12, keys=6, rounds=2), tasks=3)
print("survived")
"""

STEPS = [
    ("file.write.staged", 1),
    ("file.write.staged", 3),
    ("file.commit.staged", 1),
    ("file.replace.drafted", 1),
    ("file.commit.recorded", 1),
    ("file.commit.renamed", 1),
    ("file.commit.renamed", 3),
    ("file.commit.published", 2),  # the first time it does again what the commit before has done
]
"""Steps of a commit of three files, in order, and how often the second commit gets there before it dies."""
COMMITTED = {"file.commit.recorded", "file.commit.renamed", "file.commit.published"}


@pytest.mark.parametrize(("step", "count"), STEPS)
def test_a_kill_at_any_step_of_the_commit_leaves_each_change_once(tmp_path: Path, step: str, count: int) -> None:
    path = tmp_path / "out"
    died = subprocess.run(
        [sys.executable, "-c", CRASHING, str(path), step, str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    visible = lines(path)
    assert len(visible) == len(set(visible))

    sink = FileSink(id="files", path=path)
    sink.prepare(DELIVERY)
    assert sink.mark(DELIVERY, LOG) == (24 if step in COMMITTED else 12)
    deliver(sink, versions(12, keys=6, rounds=2), tasks=3)

    everything = [*versions(0, keys=6, rounds=2), *versions(12, keys=6, rounds=2)]
    assert sorted(lines(path)) == sorted(change.value for change in everything)
    assert list((path / "_tailrace" / "shop.files.staging").iterdir()) == []


def test_staged_files_are_invisible_and_removed_at_the_next_start(sink: FileSink) -> None:
    write(sink, versions(0, keys=3, rounds=2))
    assert lines(sink.path) == []
    assert list((sink.path / "_tailrace" / "shop.files.staging").iterdir())
    sink.prepare(DELIVERY)
    assert list((sink.path / "_tailrace" / "shop.files.staging").iterdir()) == []


def test_a_deleted_checkpoint_repeats_nothing(sink: FileSink) -> None:
    """Without a checkpoint the query asks the mark, and cuts the log into other batches."""
    changes = versions(0, keys=3, rounds=6)
    deliver(sink, changes[:6], tasks=1)
    deliver(sink, changes[6:9], tasks=1)
    deliver(sink, changes[4:], tasks=1)
    assert lines(sink.path) == [change.value for change in changes]
    assert sink.mark(DELIVERY, LOG) == span_of(changes).end
