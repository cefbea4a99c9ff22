"""Dead letters as sinks publish them, made by hand."""

from __future__ import annotations

import json

import pyarrow as pa

from tailrace.contracts import Letter, LetterRecord
from tailrace.contracts.letters import packed

FIRST_US = 1_767_225_600_123_456
MESSAGE = "it is too large:\n  say less\tžlutě"


def refused(seq: int, *, value: str = "", table: str = "orders", event: str = "", **routes: str) -> LetterRecord:
    """A record that a target refused. `routes`: more of what its writer was given."""
    key = json.dumps({"id": seq})
    row = {"seq": seq, "key": key, "value": value or json.dumps({"n": seq}), **routes}
    batch = pa.RecordBatch.from_pylist([row])
    return _record(seq, table, key, "sink.rejected", row=packed(batch), event=event)


def failed(seq: int) -> LetterRecord:
    """A change that a processor failed for, behind which something is hidden: not even its key is known."""
    return _record(seq, "orders", None, "processor.failed", processor="enrich")


def _record(
    seq: int, table: str, key: str | None, code: str, *, row: str = "", processor: str = "", event: str = ""
) -> LetterRecord:
    letter = Letter(
        sink="bus",
        processor=processor,
        source="shop-db",
        log_id="log-1",
        seq=seq,
        part="",
        event_id=event or f"event-{seq}",
        op="u",
        schema="public",
        table=table,
        key=key,
        schema_id=1,
        position=f"0/{seq:X}",
        ts_us=FIRST_US,
        code=code,
        message=MESSAGE,
        row=row,
    )
    return LetterRecord(letter, "shop", "demo", attempts=2, first_us=FIRST_US)


def headers_of(seq: int, *, table: str = "public.orders", **more: str) -> dict[str, str]:
    """What its record says, but for what `more` says; `_` stands for the dots behind `dlq`, and "" for nothing."""
    told = {
        "dlq.source.partition": "0",
        "dlq.source.offset": str(seq),
        "dlq.error.type": "sink.rejected",
        "dlq.error.message": "it is too large: say less žlutě",
        "dlq.timestamp": "1767225600123",
        "dlq.sink_id": "bus",
        "dlq.pipeline": "shop",
        "dlq.source.id": "shop-db",
        "dlq.source.table": table,
        "dlq.source.position": f"0/{seq:X}",
        "dlq.op": "u",
        "dlq.event_id": f"event-{seq}",
        "dlq.attempts": "2",
    } | {f"dlq.{name.replace('_', '.')}": text for name, text in more.items()}
    return {name: text for name, text in told.items() if text}
