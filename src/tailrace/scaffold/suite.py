"""The promises of every sink, kept by this one: see `tailrace.testing.suites.sinks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.scaffold.sink import LineSink
from tailrace.testing.suites.sinks import Received, SinkSuite


class TestLineSink(SinkSuite):
    repeats = "kept"

    @pytest.fixture
    def sink(self, tmp_path: Path) -> LineSink:
        return LineSink(id="mine", path=tmp_path / "lines.txt")

    @pytest.fixture
    def received(self, sink: LineSink) -> Received:
        def read() -> list[str]:
            lines = sink.path.read_text(encoding="utf-8").split("\n")[:-1]
            return [line.partition("\t")[2] for line in lines]

        return read
