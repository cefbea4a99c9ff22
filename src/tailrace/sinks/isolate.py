"""Finding the records that a target refuses, where it only says that it refuses a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from tailrace.contracts import Rejected
from tailrace.errors import Action, SinkError, decide


def isolated(batch: pa.RecordBatch, send: Callable[[pa.RecordBatch], None]) -> Iterator[Rejected]:
    """Send all records of `batch` but those that are refused alone, in order; yields these.

    `send` delivers all it is given or, where it raises an error that is about a record, nothing. What it is refused is
    sent again in halves.
    """
    try:
        send(batch)
    except SinkError as error:
        if decide(error) is not Action.SET_ASIDE:
            raise
        if batch.num_rows == 1:
            yield Rejected(batch, error)
            return
        half = batch.num_rows // 2
        yield from isolated(batch.slice(0, half), send)
        yield from isolated(batch.slice(half), send)
