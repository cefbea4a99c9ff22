"""What came into a log while somebody looked."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tailrace.changelog import LogReader, LogWriter
from tailrace.contracts import Admitted, ChunkId
from tailrace.supervisor.run.growth import Growth
from tailrace.testing.captures import capture, insert


def test_what_comes_is_counted_once_and_what_was_there_is_not(tmp_path: Path) -> None:
    with closing(LogWriter(tmp_path / "log", "shop")) as writer:
        writer.append(capture([insert(1)], first_xid=1))
        reader, growth = LogReader(tmp_path / "log", writer.end), Growth()
        growth.take(reader)
        assert (growth.bytes, growth.snapshot_rows, growth.versions) == (0, 0, {"public.items": 1})
        chunk = Admitted(ChunkId("r1", "public", "items", 0), 1, ())
        writer.append(replace(capture([insert(2), insert(3)], first_xid=2), admitted=chunk))
        writer.append(capture([insert(4)], first_xid=3))
        for _ in range(2):
            reader.refresh()
            growth.take(reader)
            reader.forget(reader.end)
        assert growth.bytes == sum(line.bytes for line in LogReader(tmp_path / "log").lines[1:]) > 0
        assert growth.snapshot_rows == 2
