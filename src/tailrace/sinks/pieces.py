"""Rows in pieces that no change is split over: of one change there may be several records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

Numbers = np.ndarray


def whole_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches each of which has all records of its changes."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is not None:
            offsets = _offsets(held)
            if offsets[-1] == batch.column("seq")[0].as_py():
                cut = int(np.searchsorted(offsets, offsets[-1]))
                yield held.slice(0, cut)
                batch = _joined(held.slice(cut), batch)  # noqa: PLW2901
            else:
                yield held
        held = batch
    if held is not None:
        yield held


def pieces(offsets: Numbers, sizes: Numbers, rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows: each of about so many rows and bytes, and with all rows of an offset in one of them."""
    if not len(offsets):
        return
    share = np.cumsum(sizes) // size * (len(offsets) // rows + 1) + np.arange(len(offsets)) // rows
    share = share[np.searchsorted(offsets, offsets)]  # that of the first record of the change
    cuts = (np.flatnonzero(np.diff(share)) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(offsets)], strict=True)


def _offsets(batch: pa.RecordBatch) -> Numbers:
    return batch.column("seq").to_numpy()


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    table = pa.Table.from_batches([first, second]).combine_chunks()
    return table.to_batches()[0]
