"""Routing templates filled in for batches of changes; the same texts as `render.templates` gives.

A text value stands as it reads, any other value as its JSON text. Where a hole has no value the whole is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import __version__
from tailrace.change import event_id
from tailrace.config import Reference, parse_template
from tailrace.contracts import Place
from tailrace.processors.images import Found, Search
from tailrace.processors.texts import NULL, decoded, kinds

_COLUMNS = {"db": "database", "schema": "schema", "table": "table", "txId": "tx_id"}
Fill = Callable[["Filler"], Any]
"""From a batch to the texts of a template, one for each change."""


@dataclass
class Templates:
    """The templates of a step. Everything their holes name is found in one go."""

    place: Place
    _searches: dict[str, Search] = field(default_factory=dict)
    _slots: dict[tuple[str, ...], int] = field(default_factory=dict)

    def fill(self, template: str) -> Fill:
        parts = [self._part(part) for part in parse_template(template)]

        def filled(filler: Filler) -> Any:
            texts: list[Any] = [part(filler) for part in parts]
            whole: Any = pc.binary_join_element_wise(*texts, pa.scalar("")) if texts else pa.scalar("")
            constant = isinstance(whole, pa.Scalar)
            return pa.repeat(whole, len(filler.changes)) if constant else whole

        return filled

    def filler(self, changes: pa.RecordBatch) -> Filler:
        return Filler(changes, self._searches)

    def _part(self, part: str | Reference) -> Fill:
        match part:
            case str():
                return lambda filler: pa.scalar(part)
            case Reference(("op",)):
                return lambda filler: filler.changes.column("op")
            case Reference(("event_id",)):
                return lambda filler: filler.event_ids()
            case Reference(("tenant_id",)):
                return lambda filler: pa.scalar(self.place.tenant)
            case Reference(("source", name)):
                return self._source(name)
            case Reference((image, *path)):
                return self.member(image, tuple(path))
            case _:
                raise AssertionError(f"a template cannot hold {part}")

    def member(self, image: str, path: tuple[str, ...]) -> Fill:
        """A value of `key`, `before` or `after`, as it reads."""
        search = self._searches.setdefault(image, Search(once=True))
        if not search.paths.nodes:
            search.paths.root()
        slot = self._slots.setdefault((image, *path), len(self._slots))
        search.paths.add(0, path, slot)
        return lambda filler: filler.value(image, slot)

    def _source(self, name: str) -> Fill:
        constants = {
            "connector": self.place.connector,
            "name": self.place.pipeline,
            "version": f"tailrace-{__version__}",
        }
        if name in constants:
            return lambda filler: pa.scalar(constants[name])
        if name in _COLUMNS:
            return lambda filler: filler.changes.column(_COLUMNS[name])
        if name == "ts_ms":
            return lambda filler: pc.divide(filler.changes.column("ts_us"), pa.scalar(1000)).cast(pa.string())
        return lambda filler: filler.lsns()


class Filler:
    """A batch whose changes fill templates."""

    def __init__(self, changes: pa.RecordBatch, searches: dict[str, Search]) -> None:
        self.changes, self._searches = changes, searches
        self._images: dict[str, Found] = {}

    def value(self, image: str, slot: int) -> Any:
        if image not in self._images:
            everywhere = np.zeros(len(self.changes), dtype=np.int64)
            self._images[image] = self._searches[image](self.changes.column(image), everywhere)
        text, starts, ends = self._images[image].values(slot)
        return decoded(text, np.where(kinds(text, starts) > NULL, starts, -1), ends)

    def event_ids(self) -> Any:
        """A hash of each: only templates that ask for it pay for it."""
        return pa.array([event_id(*row) for row in self._ids()], pa.string())

    def lsns(self) -> Any:
        """PostgreSQL's positions as numbers; a transaction has one."""
        found: Any = self.changes.column("position").dictionary_encode()
        numbers = [_lsn(text) for text in found.dictionary.to_pylist()]
        return pa.array(numbers, pa.string()).take(found.indices)

    def _ids(self) -> Iterator[tuple[Any, ...]]:
        names = ("source", "position", "tx_ordinal", "part")
        return zip(*(self.changes.column(name).to_pylist() for name in names), strict=True)


def _lsn(position: str) -> str | None:
    high, slash, low = position.partition("#")[0].partition("/")
    try:
        return str(int(high, 16) << 32 | int(low, 16)) if slash else None
    except ValueError:
        return None
