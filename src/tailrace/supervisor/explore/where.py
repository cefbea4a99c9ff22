"""Conditions asked about batches of changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.processors.conditions import NO, UNKNOWN, YES
from tailrace.processors.images import Search
from tailrace.processors.predicates import Values, test_of
from tailrace.supervisor.explore.grammar import And, Ask, Condition, Image, Not, Or, tests

Answers = Any


@dataclass
class Where:
    """A condition, ready to be asked. A value that the source did not send may be anything: what would have to know it
    is neither fulfilled nor not. An image that a change lacks has no values."""

    condition: Condition
    _searches: dict[Image, Search] = field(default_factory=dict)
    _slots: dict[tuple[Image, tuple[str, ...]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for test in tests(self.condition):
            which = (test.image, test.path)
            if which not in self._slots:
                search = self._searches.setdefault(test.image, _search())
                self._slots[which] = len(self._slots)
                search.paths.add(0, test.path, self._slots[which])

    def fits(self, changes: pa.RecordBatch) -> np.ndarray:
        """Which changes fulfil it."""
        rows = np.zeros(changes.num_rows, dtype=np.int64)
        found = {image: search(changes.column(image), rows) for image, search in self._searches.items()}

        def ask(test: Ask) -> Answers:
            values = Values(*found[test.image].values(self._slots[test.image, test.path]))
            answers = np.where(test_of(test.op, test.value)(values), YES, NO).astype(np.int8)
            if test.image == "after":
                answers[~values.are_there() & _unsent(changes, test.path[0])] = UNKNOWN
            return answers

        fits: np.ndarray = _answers(self.condition, ask) == YES
        return fits


def _search() -> Search:
    search = Search(once=True)
    search.paths.root()
    return search


def _answers(condition: Condition, ask: Callable[[Ask], Answers]) -> Answers:
    match condition:
        case Ask():
            return ask(condition)
        case Not(inner):
            return YES - _answers(inner, ask)
        case And(parts):
            return np.minimum.reduce([_answers(each, ask) for each in parts])
        case Or(parts):
            return np.maximum.reduce([_answers(each, ask) for each in parts])


def _unsent(changes: pa.RecordBatch, column: str) -> np.ndarray:
    """Which changes lack the column because the source did not send it."""
    found = np.zeros(changes.num_rows, dtype=np.bool_)
    unchanged: Any = changes.column("unchanged")
    mine = np.asarray(pc.equal(pc.list_flatten(unchanged), pa.scalar(column)), dtype=np.bool_)
    if mine.any():
        found[np.asarray(pc.list_parent_indices(unchanged))[mine]] = True
    return found
