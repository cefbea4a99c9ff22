"""Dead letters: changes that a sink's target refuses or a processor fails for, and what is kept of them."""

from __future__ import annotations

import base64
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from tailrace.schema import table_name

OnError = Literal["fail", "dlq", "skip"]
"""What follows where a change is refused: the sink stops, or the change becomes a dead letter, or it is counted and
gone."""

LetterState = Literal["waiting", "held", "replayed", "superseded", "acknowledged"]
"""`waiting`: it was refused. `held`: an earlier change of its key was. Of the others nothing is left to do."""

OPEN: tuple[LetterState, ...] = ("waiting", "held")
"""The states of letters that something is left to do about."""


@dataclass(frozen=True)
class Letter:
    """A change of `pipeline`'s log that `sink` did not get. It is known by sink and `event_id`.

    `row` is what the sink's writer was given, packed (see `spark.letters`): the change as the sink's chain left it, and
    its record. It is empty where `processor` failed: the log has such a change, and the letter no value of it but a
    `key` that nothing in the chain hides. `cut`: the change was too large, and its values are left out of `row`.
    """

    sink: str
    processor: str
    source: str
    log_id: str
    seq: int
    part: str
    event_id: str
    op: str
    schema: str
    table: str
    key: str | None
    schema_id: int
    position: str
    ts_us: int
    code: str
    message: str
    state: LetterState = "waiting"
    cut: bool = False
    row: str = ""

    @property
    def table_name(self) -> str:
        return table_name(self.schema, self.table)

    @property
    def needs_log(self) -> bool:
        """Whether only the log has all of the change."""
        return self.cut or not self.row

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def packed(row: pa.RecordBatch) -> str:
    """A batch of one row as a letter keeps it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(list(row.columns), schema=row.schema))
    return base64.b64encode(zlib.compress(sink.getvalue().to_pybytes())).decode()


def unpacked(text: str) -> pa.RecordBatch:
    """What `packed` was given."""
    found: pa.RecordBatch = pa.ipc.open_stream(zlib.decompress(base64.b64decode(text))).read_next_batch()
    return found
