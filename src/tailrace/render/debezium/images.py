"""Columns of row images rewritten, a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ProcessorError
from tailrace.render.debezium import rare
from tailrace.render.debezium.codes import Code
from tailrace.render.debezium.defaults import default_of
from tailrace.render.debezium.kernel import Layout, Texts, encode
from tailrace.render.debezium.semantics import Encoding, encoding_of
from tailrace.schema import Column, TableSchema

Array = np.ndarray[Any, Any]
_NOTHING = np.zeros((0, 0), dtype=np.int64)
_NONE_UNSENT = np.zeros((0, 0), dtype=np.bool_)
_ROOM = 48
"""Bytes that a value of few may become more than it was."""
_LONGER, _MUCH_LONGER = 2, 12
"""How many times longer its own text may become: arrays of numbers, of which each becomes a struct, grow most."""


@dataclass(frozen=True)
class Images:
    """How images of some columns of a version of a table are rewritten."""

    table: TableSchema
    columns: tuple[Column, ...]

    @cached_property
    def encodings(self) -> tuple[Encoding, ...]:
        return tuple(map(encoding_of, self.columns))

    def rewritten(self, images: pa.Array[Any], unchanged: pa.Array[Any] | None = None) -> pa.Array[Any]:
        """The same rows. `unchanged`: the columns that the source did not send, for each."""
        text, places = _texts(images)
        valid = np.asarray(images.is_valid())
        unsent = _NONE_UNSENT if unchanged is None else self._unsent(unchanged)
        out, ends, rares = self._run(text, places, valid, unsent, {})
        if len(rares):
            out, ends, _ = self._run(text, places, valid, unsent, self._encoded(text, rares))
        return _array(out, ends, valid)

    def _run(
        self, text: Array, places: Array, valid: Array, unsent: Array, aside: dict[tuple[int, int], str]
    ) -> tuple[Array, Array, Array]:
        texts = _laid_out(list(aside.values()))
        of = _NOTHING
        if aside:
            of = np.full((len(valid), len(self.columns)), -1, dtype=np.int64)
            rows, columns = np.array(list(aside), dtype=np.int64).T
            of[rows, columns] = np.arange(len(aside))
        size = (places[-1] - places[0]) * self._growth + len(texts.data) + len(valid) * self._room
        out, ends = np.empty(int(size), dtype=np.uint8), np.zeros(len(valid) + 1, dtype=np.int64)
        rares = encode(text, places, valid, self._layout, unsent, texts, of, out, ends)
        return out[: ends[-1]], ends, rares

    def _encoded(self, text: Array, rares: Array) -> dict[tuple[int, int], str]:
        """The values at these places, each distinct one worked out once."""
        data = text.data
        known: dict[tuple[int, bytes], str] = {}
        found: dict[tuple[int, int], str] = {}
        for row, column, start, end in rares.tolist():
            value = (column, bytes(data[start:end]))
            if value not in known:
                known[value] = self._rare(column, value[1].decode())
            found[row, column] = known[value]
        return found

    def _rare(self, column: int, value: str) -> str:
        try:
            return rare.encoded(self.encodings[column], value)
        except (ValueError, ArithmeticError, KeyError) as error:
            declared = self.columns[column]
            raise ProcessorError(
                "processor.unfit_value",
                f"a value of `{declared.name}` is none of its type, {declared.type or declared.kind}",
                hint="let the processor that changed it say the column's new kind, or use values: native",
                where=self.table.name,
            ) from error

    def _unsent(self, unchanged: pa.Array[Any]) -> Array:
        if unchanged.null_count == len(unchanged):
            return _NONE_UNSENT
        found = np.zeros((len(unchanged), len(self.columns)), dtype=np.bool_)
        names = pa.array([column.name for column in self.columns], pa.string())
        rows: Any = pc.list_parent_indices(unchanged)
        columns: Any = pc.index_in(pc.list_flatten(unchanged), names)
        known = np.asarray(columns.is_valid())
        found[np.asarray(rows)[known], np.asarray(columns.fill_null(0))[known]] = True
        return found

    @cached_property
    def _layout(self) -> Layout:
        each = self.encodings
        return Layout(
            names=_laid_out([json.dumps(column.name, ensure_ascii=False) for column in self.columns]),
            codes=np.array([one.code for one in each], dtype=np.int64),
            details=np.array([one.detail for one in each], dtype=np.int64),
            arrays=np.array([one.array for one in each], dtype=np.bool_),
            absent=_laid_out([_absent(column, one) for column, one in zip(self.columns, each, strict=True)]),
            defaulted=np.array([c.nullable and default_of(c) is not None for c in self.columns], dtype=np.bool_),
            unsent=_laid_out([one.unsent for one in each]),
        )

    @property
    def _growth(self) -> int:
        structs = any(one.array and one.code is Code.VARIABLE_DECIMAL for one in self.encodings)
        return _MUCH_LONGER if structs else _LONGER

    @cached_property
    def _room(self) -> int:
        """Bytes that a row may need beside its own text."""
        layout = self._layout
        fixed = sum(len(part.data) for part in (layout.names, layout.absent, layout.unsent))
        return fixed + _ROOM * (len(self.columns) + 1)


def _absent(column: Column, encoding: Encoding) -> str:
    """What stands for the column where an image lacks it."""
    return default_of(column) or ("null" if column.nullable else encoding.absent)


def _laid_out(texts: Sequence[str]) -> Texts:
    parts = [text.encode() for text in texts]
    places = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=places[1:])
    return Texts(np.frombuffer(b"".join(parts), dtype=np.uint8), places)


def _texts(images: pa.Array[Any]) -> tuple[Array, Array]:
    """The bytes of texts, and where each begins; the last place is where they end."""
    _, offsets, data = images.buffers()
    assert offsets is not None
    count = len(images)
    wide = np.int64 if images.type == pa.large_string() else np.int32
    places = np.frombuffer(memoryview(offsets), dtype=wide, count=images.offset + count + 1)[images.offset :]
    text = np.frombuffer(memoryview(data), dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return text, places.astype(np.int64)


def _array(out: Array, ends: Array, valid: Array) -> pa.Array[Any]:
    bits = np.packbits(valid, bitorder="little")
    buffers: list[pa.Buffer | None] = [pa.py_buffer(part.tobytes()) for part in (bits, ends, out)]
    whole: pa.Array[Any] = pa.Array.from_buffers(pa.large_string(), len(valid), buffers)
    return whole.cast(pa.string())
