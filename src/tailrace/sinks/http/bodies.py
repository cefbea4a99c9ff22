"""What a request carries: one record or several as bytes, the id they are known by, and their signature."""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

Batching = Literal["none", "array", "ndjson"]
Shape = Literal["envelope", "key_value"]

_ID_BYTES = 16


def records(rows: pa.RecordBatch, shape: Shape, source: str) -> list[bytes]:
    """The JSON of each row: the envelope, alone or with its key and place around it."""
    values: list[bytes] = _column(rows, "value").cast(pa.binary()).to_pylist()
    if shape == "envelope":
        return values
    return [head + value + tail for value, (head, tail) in zip(values, _around(rows, source), strict=True)]


def joined(found: Sequence[bytes], batching: Batching) -> bytes:
    """The body of a request with these records."""
    match batching:
        case "none":
            (record,) = found
            return record
        case "array":
            return b"[" + b",".join(found) + b"]"
        case "ndjson":
            return b"".join(_in_one_line(record) + b"\n" for record in found)


def content_type(batching: Batching, shape: Shape, *, cloudevents: bool) -> str:
    """What the body is. CloudEvents have names of their own, by their binding to HTTP."""
    if batching == "ndjson":
        return "application/x-ndjson"
    if cloudevents and shape == "envelope":
        return "application/cloudevents-batch+json" if batching == "array" else "application/cloudevents+json"
    return "application/json"


def idempotency_key(event_ids: Sequence[str]) -> str:
    """The event's id, or a hash of those of several: the same records have the same key, whenever they are sent."""
    if len(event_ids) == 1:
        return event_ids[0]
    digest = hashlib.blake2b("\n".join(event_ids).encode(), digest_size=_ID_BYTES).digest()
    return str(uuid.UUID(bytes=digest))


def signature(secret: str, algorithm: str, timestamp: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`: HMAC of the time of sending, a dot and the body."""
    signed = f"{timestamp}.".encode() + body
    return f"t={timestamp},v1={hmac.new(secret.encode(), signed, algorithm).hexdigest()}"


def _around(rows: pa.RecordBatch, source: str) -> Iterator[tuple[bytes, bytes]]:
    """What stands before and behind each value."""
    said = "record_key" in rows.schema.names
    names = ("record_key" if said else "key", "schema", "table", "lane", "seq", "event_id")
    columns = [_column(rows, name).to_pylist() for name in names]
    for key, schema, table, lane, seq, event_id in zip(*columns, strict=True):
        place = {
            "topic": ".".join(part for part in (source, schema, table) if part),
            "partition": lane,
            "offset": seq,
            "event_id": event_id,
        }
        told = json.dumps(place, ensure_ascii=False, separators=(",", ":"))
        yield f'{{"key":{_as_json(key) if said else key or "null"},"value":'.encode(), f',"metadata":{told}}}'.encode()


def _as_json(key: str | None) -> str:
    """A key that a processor said may be any text."""
    if key is None:
        return "null"
    try:
        json.loads(key)
    except ValueError:
        return json.dumps(key, ensure_ascii=False)
    return key


def _in_one_line(record: bytes) -> bytes:
    """Line breaks of JSON stand between its tokens only: columns of type json keep theirs."""
    if b"\n" not in record and b"\r" not in record:
        return record
    return record.replace(b"\n", b" ").replace(b"\r", b" ")


def _column(rows: pa.RecordBatch, name: str) -> Any:
    return rows.column(name)
