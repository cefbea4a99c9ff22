"""Names of columns that were not sent, with those of the columns made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.json_members import ROW, WHICH
from tailrace.processors.images import Search


def with_more(unchanged: Any, images: Any, more: Sequence[Mapping[str, tuple[str, ...]]], which: Any) -> Any:
    """`unchanged` with more names behind each that is in the mapping of its row, `more[which]` (-1: there is none), but
    for those that the image has."""
    owners = np.asarray(pc.list_parent_indices(unchanged)).astype(np.int64)
    encoded: Any = pc.list_flatten(unchanged).dictionary_encode()
    names, indices = encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64)
    added = [each.get(name, ()) for each in more for name in names]
    universe = {name: n for n, name in enumerate(dict.fromkeys([*names, *(name for each in added for name in each)]))}
    sizes = np.array([len(each) for each in added], dtype=np.int64)
    numbers = np.array([universe[name] for each in added for name in each], dtype=np.int64)
    place = which[owners] * len(names) + indices
    counts = np.where(which[owners] >= 0, sizes[place], 0)
    new_owners = np.repeat(owners, counts)
    new = numbers[_ranges((np.cumsum(sizes) - sizes)[place], counts)]
    there = _there(images, universe, np.bincount(new_owners, minlength=len(images)) > 0)
    stays = ~np.isin(new_owners * len(universe) + new, there)
    return _listed(
        unchanged, list(universe), np.concatenate([owners, new_owners[stays]]), np.concatenate([indices, new[stays]])
    )


def _ranges(starts: Any, counts: Any) -> Any:
    """The numbers from each start on, as many as its count."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def _there(images: Any, names: Mapping[str, int], rows: Any) -> Any:
    """Which of these names the images of these rows have, as row times their count plus number."""
    search = Search(once=True)
    root = search.paths.root()
    for name, number in names.items():
        search.paths.add(root, (name,), number)
    members = search(images, np.where(rows, root, -1)).members
    return members[:, ROW] * len(names) + members[:, WHICH]


def _listed(unchanged: Any, names: list[str], owners: Any, numbers: Any) -> Any:
    """Lists of these names, each once, in the order they come in."""
    first = np.sort(np.unique(owners * len(names) + numbers, return_index=True)[1])
    order = first[np.argsort(owners[first], kind="stable")]
    counts = np.bincount(owners[order], minlength=len(unchanged))
    is_null = np.append(np.asarray(pc.is_null(unchanged)), False)
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), mask=is_null)
    values = pa.array(names, pa.string()).take(pa.array(numbers[order]))
    return pa.ListArray.from_arrays(offsets, values).cast(unchanged.type)
