"""When the source hears that changes are safe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.capture.acknowledge import LOOK_S, Acknowledgement


class Heard:
    """The side of a source that is told what is safe."""

    def __init__(self) -> None:
        self.lsns: list[str] = []

    def acknowledge(self, resume: Mapping[str, str]) -> None:
        self.lsns.append(resume["lsn"])


def test_the_word_of_the_log_is_enough_by_default() -> None:
    source: Any = Heard()
    Acknowledgement().durable(source, 10, {"lsn": "0/A"})
    assert source.lsns == ["0/A"]


def test_or_what_sinks_have_delivered() -> None:
    source: Any = Heard()
    now, offset = 0.0, 0
    acknowledgement = Acknowledgement(lambda: offset, lambda: now)
    for end in (10, 20, 20, 30):
        acknowledgement.durable(source, end, {"lsn": f"0/{end}"})
        acknowledgement.look(source)
    assert source.lsns == []
    offset = 25
    acknowledgement.look(source)
    assert source.lsns == [], "it is not looked more often than that"
    now += LOOK_S
    acknowledgement.look(source)
    assert source.lsns == ["0/20"]
    now, offset = now + LOOK_S, 30
    acknowledgement.look(source)
    acknowledgement.look(source)
    assert source.lsns == ["0/20", "0/30"]


def test_of_positions_without_changes_in_between_the_last_counts() -> None:
    source: Any = Heard()
    acknowledgement = Acknowledgement(lambda: 10)
    acknowledgement.durable(source, 10, {"lsn": "0/A"})
    acknowledgement.durable(source, 10, {"lsn": "0/B"})
    acknowledgement.look(source)
    assert source.lsns == ["0/B"]
