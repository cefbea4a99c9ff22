from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.errors import SinkError
from tailrace.sinks.isolate import isolated


class Target:
    """Takes batches whole, but for the numbers it refuses; keeps what it took."""

    def __init__(self, *refused: int, code: str = "sink.rejected") -> None:
        self.taken: list[int] = []
        self._refused, self._code = set(refused), code

    def send(self, batch: pa.RecordBatch) -> None:
        numbers: list[int] = batch.to_pydict()["n"]
        if not self._refused.isdisjoint(numbers):
            raise SinkError(self._code, "no")
        self.taken += numbers


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(rows))})


@pytest.mark.parametrize("refused", [(), (0,), (6,), (2, 3), (0, 1, 2, 3, 4, 5, 6)])
def test_all_but_the_refused_are_sent_in_order(refused: tuple[int, ...]) -> None:
    target = Target(*refused)
    found = [each.row["n"][0].as_py() for each in isolated(batch(7), target.send)]
    assert found == list(refused)
    assert target.taken == [n for n in range(7) if n not in refused]


def test_what_is_not_about_a_record_is_not_looked_for() -> None:
    with pytest.raises(SinkError):
        list(isolated(batch(7), Target(3, code="sink.unavailable").send))
