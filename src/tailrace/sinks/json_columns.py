"""Arrow columns of JSON objects that taps made. Nothing is rounded, guessed or left out: what is not spelled as taps
spell it is an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace import json_members
from tailrace.sinks import json_kernel as kernel

_LENGTHS = {"date32[day]": 12, "timestamp[us, tz=UTC]": 29, "timestamp[us]": 28}
"""Of the texts of such values, with their quotes: "2024-02-29T12:00:00.000001Z". Those of other years are longer."""


def typed(images: pa.Array[Any], target: pa.Schema, documents: Sequence[str]) -> pa.RecordBatch:
    """One row for each image. Members that are missing or null are null; `documents` keep the text they have.
    Raises `ValueError` where a value is not one of its column's type."""
    if images.null_count:
        raise ValueError("a row without an image")
    text, places = _bytes_of(images)
    spans = _spans(text, places, target.names)
    columns = [
        _verbatim(text, spans[place]) if each.name in documents else _column(text, spans[place], each.type)
        for place, each in enumerate(target)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def texts(images: pa.Array[Any], names: Sequence[str], documents: Sequence[str]) -> list[pa.Array[Any]]:
    """Each member as a column of texts: the characters of a string, and the JSON itself of all else, also of a string
    in `documents`. Members that are missing or null are null."""
    try:
        text, places = _bytes_of(images)
        spans = _spans(text, places, names)
        return [
            _verbatim(text, spans[place]) if name in documents else _texts(text, spans[place])
            for place, name in enumerate(names)
        ]
    except ValueError:  # spelled otherwise than taps do
        found = [json_members.split(str(image)) for image in images.to_pylist()]
        return [
            pa.array([_text(each.get(name, "null"), name in documents) for each in found], pa.string())
            for name in names
        ]


def _text(member: str, is_document: bool) -> str | None:
    if member == "null":
        return None
    return str(json.loads(member)) if member.startswith('"') and not is_document else member


def _texts(text: np.ndarray, spans: np.ndarray) -> pa.Array[Any]:
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    out = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), dtype=np.uint8)
    _accept(kernel.copy_texts(text, spans, offsets, out), "no string")
    return _array(spans, offsets, out)


def _bytes_of(images: pa.Array[Any]) -> tuple[np.ndarray, np.ndarray]:
    _, offsets, data = images.buffers()
    count = images.offset + len(images) + 1
    places = np.frombuffer(memoryview(offsets or bytes(4 * count)), dtype=np.int32, count=count)[images.offset :]
    text = np.frombuffer(memoryview(data or b""), dtype=np.uint8)
    for each in (places, text):
        each.flags.writeable = False  # compiled for arrays of one kind, wherever these come from
    return text, places


def _spans(text: np.ndarray, places: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """(start, end) of each column's value in each image; -1 where it has none."""
    keys = [json.dumps(name, ensure_ascii=False).encode() for name in names]
    ends = np.cumsum([0, *map(len, keys)])
    spans = np.full((len(names), len(places) - 1, 2), -1, dtype=np.int32)
    _accept(kernel.locate(text, places, np.frombuffer(b"".join(keys), dtype=np.uint8), ends, spans), "no JSON object")
    return spans


def _column(text: np.ndarray, spans: np.ndarray, kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_integer(kind):
        numbers = np.zeros(len(spans), dtype=np.int64)
        _accept(kernel.integers(text, spans, numbers), "no integer")
        return pa.Array.from_buffers(pa.int64(), len(spans), [_valid(spans), _buffer(numbers)]).cast(kind)
    if pa.types.is_boolean(kind):
        truths = np.zeros(len(spans), dtype=np.uint8)
        _accept(kernel.booleans(text, spans, truths), "no boolean")
        bits = _buffer(np.packbits(truths, bitorder="little"))
        return pa.Array.from_buffers(kind, len(spans), [_valid(spans), bits])
    if pa.types.is_floating(kind):
        _accept(kernel.numbers_only(text, spans, quoted=False), "no number")
        found = _verbatim(text, spans).cast(kind)
        if not np.isfinite(found.drop_null().to_numpy()).all():
            raise ValueError("a number beyond its type")
        return found
    return _of_string(text, spans, kind)


def _of_string(text: np.ndarray, spans: np.ndarray, kind: pa.DataType) -> pa.Array[Any]:
    """Arrow's conversions of texts are exact, or fail; but they take more spellings than one."""
    if pa.types.is_decimal(kind):
        _accept(kernel.numbers_only(text, spans, quoted=True), "no plain number")
    length = _LENGTHS.get(str(kind))
    if length is not None and (_sizes(spans) != length).any():
        raise ValueError(f"no {kind}")
    return _strings(text, spans).cast(kind)


def _sizes(spans: np.ndarray) -> np.ndarray:
    """Of the texts that are there."""
    sizes: np.ndarray = spans[:, 1] - spans[:, 0]
    return sizes[spans[:, 0] >= 0]


def _strings(text: np.ndarray, spans: np.ndarray) -> pa.Array[Any]:
    """The characters that JSON strings stand for."""
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    out = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), dtype=np.uint8)
    _accept(kernel.copy_strings(text, spans, offsets, out), "no string")
    return _array(spans, offsets, out)


def _verbatim(text: np.ndarray, spans: np.ndarray) -> pa.Array[Any]:
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    out = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), dtype=np.uint8)
    kernel.copy(text, spans, offsets, out)
    return _array(spans, offsets, out)


def _array(spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> pa.Array[Any]:
    buffers: list[pa.Buffer | None] = [_valid(spans), _buffer(offsets), _buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spans), buffers)


def _valid(spans: np.ndarray) -> pa.Buffer:
    return _buffer(np.packbits(spans[:, 0] >= 0, bitorder="little"))


def _buffer(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _accept(row: int, what: str) -> None:
    if row >= 0:
        raise ValueError(f"{what} in row {row}")
