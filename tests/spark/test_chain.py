"""Chains of processors on both roads: what comes out, under which ids, in which order, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace.change import event_id
from tailrace.contracts import Processor
from tailrace.errors import ProcessorError
from tailrace.spark.query import Dropped
from tailrace.spec import Sharding
from tests.processors.steps import Broken, Echo, Even, Renaming
from tests.spark.sinks import LinesSink, read_lines
from tests.spark.stage import Stage, wait_until

MakeSink = Callable[..., LinesSink]
ORDERS = "public.orders"


def delivered(stage: Stage, sink: LinesSink, *processors: Processor, end: int, **settings: Any) -> list[dict[str, Any]]:
    query = stage.start(sink, processors=processors, **settings)
    stage.delivered(query, end)
    return sorted(read_lines(stage.out), key=lambda line: line["seq"])


@pytest.mark.parametrize("sharding", [None, Sharding(key="n", count=2)])
def test_records_go_through_the_chain_and_what_is_dropped_is_counted(
    sharding: Sharding | None, stage: Stage, sink: MakeSink
) -> None:
    end = stage.shop.commit(7000, 3)
    query = stage.start(sink(), processors=(Even(id="even"), Renaming(id="renaming")), sharding=sharding)
    stage.delivered(query, end)
    end = stage.shop.commit(4)
    stage.delivered(query, end)
    lines = sorted(read_lines(stage.out), key=lambda line: line["seq"])
    assert [line["value"]["after"]["number"] for line in lines] == list(range(2, end + 1, 2))
    assert query.progress().dropped == {Dropped(ORDERS, "even", "odd"): (end + 1) // 2}
    assert query.progress().tables[ORDERS].rows == end // 2


def test_what_is_made_has_ids_of_its_own_and_stands_behind_its_parent(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(2)
    lines = delivered(stage, sink(), Echo(id="echo"), end=end)
    values = [line["value"] for line in lines]
    ids = [event_id("shop", "0/0", n, part) for n in (0, 1) for part in (None, "echo:1")]
    assert [value["event_id"] for value in values] == ids


def test_a_sinks_filter_knows_who_made_a_change(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(3)
    lines = sink(filter={"exclude_synthetic": True})
    query = stage.start(lines, processors=(Echo(id="echo"), *lines.chain()))
    stage.delivered(query, end)
    assert [line["seq"] for line in read_lines(stage.out)] == [0, 1, 2]
    assert query.progress().dropped == {Dropped(ORDERS, "filter", "synthetic"): 3}


def test_a_step_that_fails_stops_the_sink_with_its_own_error(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(20)
    query = stage.start(sink(), processors=(Broken(id="broken"),))
    with pytest.raises(ProcessorError, match="thirteen") as caught:
        wait_until(lambda: False, query)
    assert (caught.value.code, caught.value.hint) == ("processor.failed", "avoid it")


def test_a_repeat_gives_the_same_records(stage: Stage, sink: MakeSink) -> None:
    """What was not committed comes again, through the chain again, and counts once."""
    end = stage.shop.commit(50)
    (stage.directory / "out").mkdir()
    (stage.out / "refuse-commit").touch()
    query = stage.start(sink(), processors=(Even(id="even"), Echo(id="echo")))
    wait_until(lambda: not query.is_active())
    (stage.out / "refuse-commit").unlink()
    again = stage.start(sink(), processors=(Even(id="even"), Echo(id="echo")))
    stage.delivered(again, end)
    values = [line["value"] for line in read_lines(stage.out)]
    assert len(values) == 100 and values[:50] == values[50:]
    assert again.progress().dropped == {Dropped(ORDERS, "even", "odd"): 25}
