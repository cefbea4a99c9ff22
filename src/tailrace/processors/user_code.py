"""What processors with user code share: whose changes the code sees, what follows when it fails, and what is promised
of its answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Protocol, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tailrace.contracts import DEAD_LETTER, BatchProcessor, Failed, OnError, Place, Step, Trait
from tailrace.errors import ProcessorError
from tailrace.processors.declared import Declared, DeclaresColumns
from tailrace.processors.outcome import Outcome, applied
from tailrace.schema import TableSchema

PIECE_ROWS = 1_000
"""Changes that a call of user code gets, at most."""
PIECE_BYTES = 4 << 20
"""Bytes of row images in a call; a larger change is a call of its own."""

SEEN_OPS = ("c", "u", "d", "r", "m")
"""User code sees changes with the image of a row, and messages. Truncates and schema changes pass it by."""

Piece = tuple[int, ...]
"""Places of changes in their batch."""


class UserError(Exception):
    """User code failed, or gave what nothing can be made of. `reason` has nothing of a row in it; `said`, in the code's
    own words, may have."""

    def __init__(self, reason: str, *, code: str = "processor.failed", said: str = "") -> None:
        super().__init__(reason)
        self.reason, self.code, self.said = reason, code, said


class ForTables(DeclaresColumns):
    """A processor that some tables go through, and that may add columns to them."""

    tables: Annotated[
        tuple[str, ...],
        Field(
            description="Only changes of these tables go through it: `schema.table`, or a name without a dot for "
            "tables of any schema; `*` stands for any characters. Absent: all tables, and messages.",
            examples=[["shop.orders", "billing.*"]],
        ),
    ] = ()

    def concerns(self, schema: str, table: str) -> bool:
        """Whether changes of a table go through it."""
        names = (f"{schema}.{table}", table)
        return not self.tables or any(fnmatchcase(name, pattern) for pattern in self.tables for name in names)


class UserCode(ForTables, BatchProcessor):
    """User code over batches of changes. With `columns`, what else it adds is gathered in the JSON column
    `_undeclared`."""

    row_wise: Annotated[
        bool,
        Field(
            description="Your promise that what becomes of a change depends on its table, key and `after` alone, and "
            "that it keeps its key: needed before tables that equal their source."
        ),
    ] = False
    on_error: Annotated[
        OnError | None,
        Field(
            description="What follows when the code fails for a change: the sink stops (`fail`), the change becomes a "
            "dead letter (`dlq`, needs `journal`; not before tables of a lake), or it is dropped and counted with the "
            "reason `error` (`skip`). Absent: `dlq` where the pipeline has a `journal` and the sink gets records, else "
            "`fail`."
        ),
    ] = None

    def makes_letters(self) -> bool:
        return self.on_error == "dlq"

    def failing(self, on_error: OnError) -> Self:
        return self if self.on_error is not None else self.model_copy(update={"on_error": on_error})

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key"}) if self.row_wise else frozenset()

    def breaks_mirror(self) -> str | None:
        promise = "it is not declared `row_wise: true`: an outcome by table, key and `after` alone"
        return None if self.row_wise else promise

    def shape(self, table: TableSchema) -> TableSchema | None:
        if not self.concerns(table.schema, table.table):
            return table
        return self.gathering(table)

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        """Any declared column may have been made of one that was not sent."""
        names = tuple(columns)
        made = self.columns or {} if self.concerns(table.schema, table.table) else {}
        return tuple(dict.fromkeys((*names, *made))) if names else ()

    @abstractmethod
    def load(self, place: Place) -> Code:
        """The code, ready to be called. Raises `ProcessorError` where it cannot be."""

    def open(self, place: Place) -> Step:
        columns = None if self.columns is None else tuple(self.columns)
        return _Step(self, place, self.load(place), Declared(columns, place.tables))


class Code(Protocol):
    """User code that was loaded."""

    def call(self, batch: pa.RecordBatch, piece: Piece) -> Outcome:
        """What it makes of these changes. Raises `UserError`; the next call then finds nothing of this one."""
        ...


@dataclass
class _Step:
    """The code, piece by piece, and each change that it fails for alone."""

    processor: UserCode
    place: Place
    code: Code
    declared: Declared

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        outcome, seen = Outcome(), np.flatnonzero(self._seen(batch)).tolist()
        for piece in _pieces(batch, seen):
            outcome.add(self._called(batch, piece))
        self.declared.settle(batch, outcome, seen)
        return applied(batch, outcome, self.processor.id)

    def _seen(self, batch: pa.RecordBatch) -> Any:
        seen = np.asarray(pc.is_in(batch.column("op"), pa.array(SEEN_OPS)))
        if not self.processor.tables:
            return seen
        texts = (cast(list[str], batch.column(name).to_pylist()) for name in ("schema", "table"))
        names = list(zip(*texts, strict=True))
        concerned = {name for name in set(names) if self.processor.concerns(*name)}
        return seen & np.fromiter((name in concerned for name in names), np.bool_, batch.num_rows)

    def _called(self, batch: pa.RecordBatch, piece: Piece) -> Outcome:
        """What the code makes of a piece; where it fails, what it makes of each half."""
        try:
            outcome = self.code.call(batch, piece)
            self._check(outcome)
            return outcome
        except UserError as error:
            if len(piece) == 1:
                return self._failed(batch, piece[0], error)
        middle = len(piece) // 2
        outcome = self._called(batch, piece[:middle])
        outcome.add(self._called(batch, piece[middle:]))
        return outcome

    def _check(self, outcome: Outcome) -> None:
        if self.processor.row_wise and (outcome.made or outcome.changed["key"]):
            what = "made changes" if outcome.made else "changed a key"
            raise UserError(f"it {what}, though it is declared row_wise", code="processor.not_row_wise")

    def _failed(self, batch: pa.RecordBatch, place: int, error: UserError) -> Outcome:
        if self.processor.on_error == "skip":
            return Outcome(dropped={place: "error"})
        if self.processor.on_error == "dlq" and self.place.set_aside is not None:
            told = ProcessorError(error.code, f"'{self.processor.id}' {error.reason}")
            self.place.set_aside(Failed(self.processor.id, batch.slice(place, 1), told))
            return Outcome(dropped={place: DEAD_LETTER})
        said = f": {error.said}" if error.said and self.place.outspoken else ""
        row = {name: batch.column(name)[place].as_py() for name in ("schema", "table", "op", "seq")}
        raise ProcessorError(
            error.code,
            f"'{self.processor.id}' {error.reason}{said}",
            hint="`tailrace test` shows more; `on_error` may set such changes aside, or drop them, counted",
            where=f"{row['schema']}.{row['table']}, {row['op']} at offset {row['seq']}",
        ) from None


def _pieces(batch: pa.RecordBatch, places: Sequence[int]) -> Iterator[Piece]:
    """These changes in order, in pieces of bounded size."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in ("key", "before", "after"):
        image: Any = batch.column(name)
        sizes += np.asarray(pc.fill_null(pc.binary_length(image), 0))
    piece: list[int] = []
    weight = 0
    for place in places:
        size = int(sizes[place])
        if piece and (len(piece) == PIECE_ROWS or weight + size > PIECE_BYTES):
            yield tuple(piece)
            piece, weight = [], 0
        piece.append(place)
        weight += size
    if piece:
        yield tuple(piece)


def taken(batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    """The changes of a piece."""
    places = np.asarray(piece)
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return batch.slice(int(places[0]), len(places))
    return batch.take(pa.array(places))
