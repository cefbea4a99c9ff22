"""The canonical change: one shape for every table of every source.

Row images are JSON text made once by the tap, so one streaming query carries all tables and a new table needs
no restart. `CHANGES` is the Arrow schema that the log's readers yield and that Spark sees.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

LANES = 64
"""Fixed number of hash buckets of keys. Order holds within a lane; tasks share whole lanes."""

OPS = ("c", "u", "d", "r", "t", "m", "s")
"""create, update, delete, read (snapshot), truncate, message, schema change."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("seq", pa.int64(), nullable=False),  # offset in the log; source commit order
    pa.field("lane", pa.int32(), nullable=False),
    pa.field("source", pa.string(), nullable=False),  # the source's id
    pa.field("op", pa.string(), nullable=False),
    pa.field("database", pa.string(), nullable=False),
    pa.field("schema", pa.string(), nullable=False),
    pa.field("table", pa.string(), nullable=False),
    pa.field("key", pa.string()),  # JSON object text, or null for a table without a key
    pa.field("before", pa.string()),  # JSON object text or null
    pa.field("after", pa.string()),  # JSON object text or null
    pa.field("unchanged", pa.list_(pa.string())),  # columns the source did not send
    pa.field("ts_us", pa.int64(), nullable=False),  # commit time at the source
    pa.field("captured_us", pa.int64(), nullable=False),
    pa.field("tx_id", pa.string(), nullable=False),
    pa.field("tx_ordinal", pa.int64(), nullable=False),  # 0-based place in the transaction
    pa.field("tx_last", pa.bool_(), nullable=False),
    pa.field("position", pa.string(), nullable=False),  # the source's, opaque; PostgreSQL: commit LSN
    pa.field("schema_id", pa.int32(), nullable=False),
    pa.field("headers", pa.map_(pa.string(), pa.string())),  # e.g. new_key / old_key of a key change
]
CHANGES = pa.schema(_FIELDS)

CHANGES_DDL = (
    "seq bigint not null, lane int not null, source string not null, op string not null, "
    "database string not null, schema string not null, `table` string not null, "
    "key string, before string, after string, unchanged array<string>, "
    "ts_us bigint not null, captured_us bigint not null, "
    "tx_id string not null, tx_ordinal bigint not null, tx_last boolean not null, "
    "position string not null, schema_id int not null, headers map<string,string>"
)
"""`CHANGES` as Spark spells it."""

_MADE: list[pa.Field[Any]] = [
    pa.field("tags", pa.list_(pa.string())),
    pa.field("route", pa.map_(pa.string(), pa.string())),  # `topic`, `key` …: what a sink's own templates would say;
    # `headers`: JSON object text of record headers; `value`: "after" where the record is the row image alone
    pa.field("synthetic", pa.string()),  # the processor that made it; null: the source did
    pa.field("part", pa.string()),  # tells what was made of one change apart; null: the change itself
    pa.field("dropped", pa.string()),  # why it is not wanted; such changes never leave a chain
]
PROCESSED = pa.schema([*_FIELDS, *_MADE])
"""Changes inside a chain of processors and behind it. A log without a chain pays nothing for the columns behind
`CHANGES`, which are null until a processor says something."""

PROCESSED_DDL = (
    CHANGES_DDL + ", tags array<string>, route map<string,string>, synthetic string, part string, dropped string"
)
"""`PROCESSED` as Spark spells it."""

_PIECES = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


def _event_id_sql(*more: str) -> str:
    """The digest is computed once; bytes are cheaper to cut than text."""
    text = ", ".join(("source, '|', position, '|', cast(tx_ordinal as string)", *more))
    pieces = [f"substr(cast(md5(concat({text})) as binary), {start}, {length})" for start, length in _PIECES]
    return f"""cast(concat({", X'2D', ".join(pieces)}) as string)"""


EVENT_ID_SQL = _event_id_sql()
"""`event_id` as Spark spells it, for `CHANGES`."""

PROCESSED_EVENT_ID_SQL = _event_id_sql("coalesce(concat('|', part), '')")
"""The same for `PROCESSED`."""


def event_id(source: str, position: str, tx_ordinal: int, part: str | None = None) -> str:
    """The deterministic id of a change: equal for every delivery and replay. `part`: what a processor made of it.
    Equals `EVENT_ID_SQL` and `PROCESSED_EVENT_ID_SQL`."""
    text = f"{source}|{position}|{tx_ordinal}" + (f"|{part}" if part else "")
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))
