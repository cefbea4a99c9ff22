from __future__ import annotations

import json

import pytest

from tailrace.sinks.console import ConsoleSink
from tailrace.testing.suites.sinks import Received, SinkSuite, deliver, versions


class TestConsoleSink(SinkSuite):
    repeats = "kept"

    @pytest.fixture
    def sink(self) -> ConsoleSink:
        return ConsoleSink(id="screen", format="json")

    @pytest.fixture
    def received(self, sink: ConsoleSink, capsys: pytest.CaptureFixture[str]) -> Received:
        def read() -> list[str]:
            return capsys.readouterr().out.split("\n")[:-1]

        return read


def test_lines_of_all_tasks_are_in_the_order_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(ConsoleSink(id="screen", format="json"), versions(0, keys=4, rounds=5), tasks=3)
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == list(range(20))


def test_pretty_lines_show_time_op_table_and_row(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(ConsoleSink(id="screen"), versions(0, keys=1, rounds=2))
    assert capsys.readouterr().out.splitlines() == [
        '00:00:00.000000  c  public.orders  {"id": 0, "n": 0, "text": ""}',
        '00:00:00.000000  u  public.orders  {"id": 0, "n": 1, "text": ""}',
    ]


def test_a_large_batch_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(ConsoleSink(id="screen", format="json", limit=3), versions(0, keys=4, rounds=5))
    *lines, last = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [0, 1, 2]
    assert last == "… and 17 more changes"
