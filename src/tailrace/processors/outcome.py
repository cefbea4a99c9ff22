"""What user code made of the changes of a batch, and the batch that follows from it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.change import PROCESSED
from tailrace.processors.chain import with_columns

EDITABLE = ("op", "key", "before", "after", "unchanged", "tags", "route")
"""The columns that user code has a say in."""


@dataclass(frozen=True)
class Made:
    """A change beside the one at `place`, whose columns it has but for these."""

    place: int
    columns: Mapping[str, Any]


@dataclass
class Outcome:
    """What became of the changes of a batch, by their place in it. What is not named here stays as it is."""

    dropped: dict[int, str] = field(default_factory=dict)
    changed: defaultdict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    made: list[Made] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.dropped |= other.dropped
        self.made += other.made
        for column, values in other.changed.items():
            self.changed[column] |= values


def applied(batch: pa.RecordBatch, outcome: Outcome, processor: str) -> pa.RecordBatch:
    """`batch` with what user code made of it; what it made beside a change stands right behind it."""
    edited = _edited(batch, {**outcome.changed, "dropped": outcome.dropped})
    if not outcome.made:
        return edited
    added = _added(batch, outcome.made, processor)
    places = np.concatenate([np.arange(batch.num_rows), [each.place for each in outcome.made]])
    whole: pa.RecordBatch = pa.concat_batches([edited, added])  # type: ignore[attr-defined]
    return whole.take(pa.array(np.argsort(places, kind="stable"), pa.int64()))


def _edited(batch: pa.RecordBatch, changed: Mapping[str, Mapping[int, Any]]) -> pa.RecordBatch:
    columns: dict[str, Any] = {}
    for name, values in changed.items():
        if values:
            mask = np.zeros(batch.num_rows, dtype=np.bool_)
            places = sorted(values)
            mask[places] = True
            new = pa.array([values[place] for place in places], PROCESSED.field(name).type)
            columns[name] = _replaced(batch.column(name), mask, new)
    return with_columns(batch, **columns)


def _replaced(column: pa.Array[Any], mask: Any, values: pa.Array[Any]) -> pa.Array[Any]:
    """`column` with `values` where the mask says so. Arrow's own function knows no lists and maps."""
    places = np.arange(len(column), dtype=np.int64)
    places[mask] = len(column) + np.arange(len(values))
    return pa.concat_arrays([column, values]).take(pa.array(places, pa.int64()))


def _added(batch: pa.RecordBatch, made: Sequence[Made], processor: str) -> pa.RecordBatch:
    """What was made: metadata of the changes it stands behind, and ids that a repeat gives again."""
    parents = batch.take(pa.array([each.place for each in made], pa.int64()))
    changed: dict[str, dict[int, Any]] = {name: {} for name in EDITABLE}
    for row, each in enumerate(made):
        for name, value in each.columns.items():
            changed[name][row] = value
    counts: Counter[int] = Counter()
    parts = []
    for each, parent in zip(made, parents.column("part").to_pylist(), strict=True):
        counts[each.place] += 1
        own = f"{processor}:{counts[each.place]}"
        parts.append(f"{parent}/{own}" if parent else own)
    synthetic = pa.array([processor] * len(made), pa.string())
    nothing = pa.nulls(len(made), pa.string())
    batch = with_columns(parents, synthetic=synthetic, part=pa.array(parts, pa.string()), dropped=nothing)
    return _edited(batch, changed)


_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
"""Only where values end is asked of it, not what they are."""
_BLANKS = " \t\n\r"


def members(image: str) -> dict[str, str]:
    """The members of a JSON object, each value as the text it has."""
    found: dict[str, str] = {}
    at = _past_blanks(image, 1)
    while image[at] == '"':
        name, at = _DECODER.raw_decode(image, at)
        start = _past_blanks(image, _past_blanks(image, at) + 1)
        _, at = _DECODER.raw_decode(image, start)
        found[name] = image[start:at]
        at = _past_blanks(image, at)
        if image[at] == ",":
            at = _past_blanks(image, at + 1)
    return found


def image_of(texts: Mapping[str, str]) -> str:
    """The inverse of `members`."""
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in texts.items()) + "}"


def patched(image: str | None, patch: Sequence[tuple[str, str | None]]) -> str:
    """The image that has these members: None stands for the text that the member had. Members that it had keep their
    order, new ones follow."""
    had = members(image) if image else {}
    new = dict(patch)
    texts = {name: new[name] or text for name, text in had.items() if name in new}
    return image_of(texts | {name: text for name, text in patch if name not in texts and text is not None})


def _past_blanks(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at


def merged_route(route: Sequence[tuple[str, str]] | None, said: Mapping[str, str]) -> dict[str, str]:
    """What earlier steps said of a change's way, and what this one says over it."""
    return {**dict(route or ()), **said}
