"""Envelopes: the shape of a record on the wire, as one Catalyst expression over the canonical columns.

Row images are JSON text already, so a record is a concatenation: nothing is parsed, nothing is copied into
Python, and digits, key order and duplicate keys of an embedded `json` value survive as the source sent them.

`native` holds, in this order: `before`, `after`, `source`, `op`, `ts_ms`, `ts_us`, `transaction`, `event_id`,
`tenant_id`, then only where they apply `unchanged` (columns the source did not send), `headers` (such as
`old_key` and `new_key` of a key change), behind processors `tags` and `synthetic` (the processor that made the change),
and `tx_end` (true, on a transaction's last change). `ts_ms` and
`ts_us` are the commit time at the source, in both places. `source.lsn` and `source.txId` are numbers, as
Debezium's are; `source.snapshot` is `"true"` on snapshot rows and absent elsewhere. `debezium` is the native
object as the payload of a schemaless Debezium message. `cloudevents` is a CloudEvents 1.0 event in structured
JSON mode.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from pyspark.sql import Column
from pyspark.sql import functions as F

from tailrace import __version__
from tailrace.change import EVENT_ID_SQL, PROCESSED_EVENT_ID_SQL
from tailrace.config import CloudEventsEnvelope, DebeziumEnvelope, Envelope, NativeEnvelope
from tailrace.contracts import Delivery
from tailrace.render.templates import LSN_SQL

EVENT_TYPES = {
    "c": "created",
    "u": "updated",
    "d": "deleted",
    "r": "snapshot",
    "t": "truncated",
    "m": "message",
    "s": "schema",
}
"""What a CloudEvents `type` ends with, for each op."""

_ESCAPED_IN_JSON = r'["\\\x00-\x1f]'
_ESCAPED_IN_URI = r"[^A-Za-z0-9._-]"


def value_column(envelope: Envelope, delivery: Delivery, connector: str, *, processed: bool = False) -> Column:
    """The record's value, as JSON text, for a frame with the columns of `change.CHANGES`, or behind processors of
    `change.PROCESSED`."""
    match envelope:
        case NativeEnvelope():
            return _native(delivery, connector, processed)
        case DebeziumEnvelope():
            return F.concat(F.lit('{"schema":null,"payload":'), _native(delivery, connector, processed), F.lit("}"))
        case CloudEventsEnvelope():
            return _cloudevents(envelope.type_prefix, delivery, processed)


def _event_id(processed: bool) -> Column:
    """The id of a change, or of what processors made of it."""
    return F.expr(PROCESSED_EVENT_ID_SQL if processed else EVENT_ID_SQL)


def _native(delivery: Delivery, connector: str, processed: bool) -> Column:
    times = _times()
    return F.concat(
        *_images(),
        F.lit(f',"source":{{"version":"tailrace-{__version__}","connector":{_json(connector)},'),
        F.lit(f'"name":{_json(delivery.pipeline)},'),
        times,
        F.lit(","),
        _names(),
        *_place(connector),
        F.when(F.col("op") == "r", F.lit(',"snapshot":"true"},"op":"')).otherwise(F.lit('},"op":"')),
        F.col("op"),
        F.lit('",'),
        times,
        F.lit(',"transaction":{"id":"'),
        F.col("tx_id"),
        F.lit('","total_order":'),
        (F.col("tx_ordinal") + 1).cast("string"),
        F.lit('},"event_id":"'),
        _event_id(processed),
        F.lit(f'","tenant_id":{_json(delivery.tenant)}'),
        _optional("unchanged"),
        _optional("headers"),
        *((_optional("tags"), _synthetic()) if processed else ()),
        F.when(F.col("tx_last"), F.lit(',"tx_end":true}')).otherwise(F.lit("}")),
    )


def _cloudevents(prefix: str, delivery: Delivery, processed: bool) -> Column:
    table = F.expr("if(schema = '', `table`, concat(schema, '.', `table`))")
    source = _json(f"tailrace/{quote(delivery.pipeline, safe='')}/")[:-1]
    return F.concat(
        F.lit('{"specversion":"1.0","id":"'),
        _event_id(processed),
        F.lit(f'","source":{source}'),
        _uri_segment(table),
        F.lit(f'","type":{_json(prefix + ".")[:-1]}'),
        _event_type(),
        F.lit('","time":"'),
        _rfc3339(),
        F.lit('","datacontenttype":"application/json","subject":'),
        _json_string(table),
        F.lit(',"data":'),
        *_images(),
        F.lit(',"op":"'),
        F.col("op"),
        F.lit('"}}'),
    )


def _images() -> tuple[Column, ...]:
    null = F.lit("null")
    return (
        F.lit('{"before":'),
        F.coalesce(F.col("before"), null),
        F.lit(',"after":'),
        F.coalesce(F.col("after"), null),
    )


def _times() -> Column:
    us = F.col("ts_us").cast("string")
    ms = F.expr("cast(ts_us div 1000 as string)")
    return F.concat(F.lit('"ts_ms":'), ms, F.lit(',"ts_us":'), us)


def _names() -> Column:
    """The members `db`, `schema` and `table`. Only names that need escaping pay for it."""
    db, schema, table = F.col("database"), F.col("schema"), F.col("table")
    plain = F.concat(F.lit('"db":"'), db, F.lit('","schema":"'), schema, F.lit('","table":"'), table, F.lit('"'))
    escaped = F.to_json(F.struct(db.alias("db"), schema.alias("schema"), table.alias("table")))
    members = F.substring(escaped, F.lit(2), F.length(escaped) - 2)
    return F.when(F.concat(db, schema, table).rlike(_ESCAPED_IN_JSON), members).otherwise(plain)


def _place(connector: str) -> tuple[Column, ...]:
    """Where the change stands in the source's log, in the connector's own members."""
    if connector != "postgresql":
        return (F.lit(',"sequence":'), _json_string(F.col("position")))
    return (
        F.lit(',"lsn":'),
        F.expr(LSN_SQL),
        F.lit(',"txId":'),
        F.expr("coalesce(cast(try_cast(tx_id as bigint) as string), 'null')"),
    )


def _optional(name: str) -> Column:
    """The member `name` where the column has something to say, else nothing."""
    column = F.col(name)
    member = F.concat(F.lit(f',"{name}":'), F.to_json(column))
    return F.when(F.size(column) > 0, member).otherwise(F.lit(""))


def _synthetic() -> Column:
    """The processor that made the change, whose id needs no escapes."""
    made = F.concat(F.lit(',"synthetic":"'), F.col("synthetic"), F.lit('"'))
    return F.coalesce(made, F.lit(""))


def _event_type() -> Column:
    kinds = F.lit("unknown")
    for op, kind in reversed(EVENT_TYPES.items()):
        kinds = F.when(F.col("op") == op, F.lit(kind)).otherwise(kinds)
    return kinds


def _rfc3339() -> Column:
    """The commit time as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, by arithmetic: the session's time zone has no say."""
    day = F.expr("cast(date_from_unix_date(cast(ts_us div 86400000000 as int)) as string)")
    clock = F.expr(
        "cast(cast(1000000000000"
        " + ts_us div 3600000000 % 24 * 10000000000"
        " + ts_us div 60000000 % 60 * 100000000"
        " + ts_us % 60000000 as string) as binary)"
    )
    hour, minute, second = (F.substring(clock, at, 2) for at in (2, 4, 6))
    colon = F.expr("X'3A'")
    time = F.concat(hour, colon, minute, colon, second, F.expr("X'2E'"), F.substring(clock, 8, 6))
    return F.concat(day, F.lit("T"), time.cast("string"), F.lit("Z"))


def _uri_segment(text: Column) -> Column:
    """`text` as one percent-encoded segment of a URI-reference; needs no JSON escaping afterwards."""
    encoded = F.replace(F.url_encode(text), F.lit("+"), F.lit("%20"))
    return F.when(text.rlike(_ESCAPED_IN_URI), encoded).otherwise(text)


def _json_string(text: Column) -> Column:
    """`text` as a JSON string, quotes included."""
    escaped = F.to_json(F.struct(text.alias("v")))
    value = F.substring(escaped, F.lit(6), F.length(escaped) - 6)
    return F.when(text.rlike(_ESCAPED_IN_JSON), value).otherwise(F.concat(F.lit('"'), text, F.lit('"')))


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
