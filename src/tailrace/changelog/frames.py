"""Frames: how rows lie in a segment.

    "TRF1" | u32 length of txs | u32 length of rows | txs (Arrow IPC) | rows (Arrow IPC), 8-byte aligned

A frame's checksum is in its manifest line, so a frame needs no trailer and a torn one is never referenced.
"""

from __future__ import annotations

import struct
from typing import Protocol

import pyarrow as pa
import xxhash

from tailrace.changelog.storage import Directory
from tailrace.contracts import ROWS, TXS, Frame
from tailrace.errors import LogError


class Place(Protocol):
    """Where a frame lies."""

    @property
    def segment(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def checksum(self) -> int: ...


_HEAD = struct.Struct("<4sII4x")
_MAGIC = b"TRF1"


def encode(frame: Frame) -> list[bytes | pa.Buffer]:
    """The frame as buffers to write one after another."""
    txs, rows = frame.txs.serialize(), frame.rows.serialize()
    return [_HEAD.pack(_MAGIC, txs.size, rows.size), txs, rows]


def checksum(parts: list[bytes | pa.Buffer]) -> int:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(memoryview(part))
    return digest.intdigest()


def verify(buffer: pa.Buffer, expected: int, where: str) -> None:
    """Refuse bytes that are not what was written."""
    if xxhash.xxh3_64_intdigest(memoryview(buffer)) != expected:
        raise LogError(
            "log.corrupt",
            "a frame of the change log does not match its checksum",
            hint="restore the segment from a backup, or remove the log and start again with a `snapshot` in the source",
            where=where,
        )


def read(storage: Directory, place: Place) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A frame's rows and its transactions, as they were written."""
    buffer = storage.read(place.segment, place.offset, place.length)
    verify(buffer, place.checksum, f"{place.segment}@{place.offset}")
    return decode(buffer)


def decode_txs(buffer: pa.Buffer) -> pa.RecordBatch:
    """Only the transaction table: enough to find where a batch may end."""
    _, txs, _ = _HEAD.unpack_from(memoryview(buffer))
    return pa.ipc.read_record_batch(buffer.slice(_HEAD.size, txs), TXS)


def decode(buffer: pa.Buffer) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(rows, txs), without copying."""
    _, txs, rows = _HEAD.unpack_from(memoryview(buffer))
    body = _HEAD.size + txs
    return pa.ipc.read_record_batch(buffer.slice(body, rows), ROWS), decode_txs(buffer)
