"""Envelopes: the shape of a record on the wire, as one Catalyst expression over the canonical columns.

Row images are JSON text already, so a record is a concatenation: nothing is parsed, nothing is copied into
Python, and digits, key order and duplicate keys of an embedded `json` value survive as the source sent them.

`native` holds, in this order: `before`, `after`, `source`, `op`, `ts_ms`, `ts_us`, `transaction`, `event_id`,
`tenant_id`, then only where they apply `unchanged` (columns the source did not send), `headers` (such as
`old_key` and `new_key` of a key change), `tags` and `synthetic` (what processors said, and the one that made the
change) and `tx_end` (true, on a transaction's last change). `ts_ms` and `ts_us` are the commit time at the source,
in both places. `source` ends with the members that the kind of source has for a place in its log;
`source.snapshot` is `"true"` on snapshot rows and absent elsewhere. `debezium` is in `render.debezium`.
`cloudevents` is a CloudEvents 1.0 event in structured JSON mode. `helios` is an event of HeliosDB CDC.
"""

from __future__ import annotations

from urllib.parse import quote

from pyspark.sql import Column
from pyspark.sql import functions as F

from tailrace import __version__
from tailrace.config import CloudEventsEnvelope, DebeziumEnvelope, Envelope, HeliosEnvelope, NativeEnvelope
from tailrace.render.debezium.messages import message_key, message_value
from tailrace.render.rendering import (
    Rendering,
    base64_string,
    images,
    json_members,
    json_string,
    json_text,
    member,
    optional_member,
)

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
OPERATIONS = {
    "c": "INSERT",
    "u": "UPDATE",
    "d": "DELETE",
    "r": "SNAPSHOT",
    "t": "TRUNCATE",
    "m": "MESSAGE",
    "s": "SCHEMA",
}
"""What HeliosDB calls each op, as far as it has it."""

_ESCAPED_IN_URI = r"[^A-Za-z0-9._-]"


def value_column(envelope: Envelope, rendering: Rendering) -> Column:
    """The record's value, as JSON text. A processor may have said (`route`) that it is the row image alone."""
    value = _value(envelope, rendering)
    if not rendering.processed:
        return value
    image = F.coalesce(F.col("after"), F.lit("null"))
    return F.when(F.col("route")["value"] == "after", image).otherwise(value)


def key_column(envelope: Envelope, rendering: Rendering) -> Column:
    """The record's key: that of the row as JSON text, in what the envelope puts around it."""
    if isinstance(envelope, DebeziumEnvelope) and envelope.values == "debezium":
        return message_key(envelope, rendering)
    return F.col("key")


def _value(envelope: Envelope, rendering: Rendering) -> Column:
    match envelope:
        case NativeEnvelope():
            return _native(rendering)
        case DebeziumEnvelope(values="debezium"):
            return message_value(envelope, rendering)
        case DebeziumEnvelope(wrapper=False):
            return _native(rendering)
        case DebeziumEnvelope():
            return F.concat(F.lit('{"schema":null,"payload":'), _native(rendering), F.lit("}"))
        case CloudEventsEnvelope():
            return _cloudevents(envelope.type_prefix, rendering)
        case HeliosEnvelope():
            return _helios(rendering)


def _native(rendering: Rendering) -> Column:
    times = _times()
    provenance, delivery = rendering.provenance, rendering.delivery
    return F.concat(
        *images(),
        F.lit(f',"source":{{"version":"tailrace-{__version__}","connector":{json_text(provenance.connector)},'),
        F.lit(f'"name":{json_text(delivery.pipeline)},'),
        times,
        F.lit(","),
        json_members(db="database", schema="schema", table="table"),
        *(part for each in provenance.members for part in member(each)),
        F.when(F.col("op") == "r", F.lit(',"snapshot":"true"},"op":"')).otherwise(F.lit('},"op":"')),
        F.col("op"),
        F.lit('",'),
        times,
        F.lit(',"transaction":{"id":"'),
        F.col("tx_id"),
        F.lit('","total_order":'),
        (F.col("tx_ordinal") + 1).cast("string"),
        F.lit('},"event_id":"'),
        rendering.event_id,
        F.lit(f'","tenant_id":{json_text(delivery.tenant)}'),
        optional_member("unchanged"),
        optional_member("headers"),
        *(_of_processors() if rendering.processed else ()),
        F.when(F.col("tx_last"), F.lit(',"tx_end":true}')).otherwise(F.lit("}")),
    )


def _of_processors() -> tuple[Column, Column]:
    maker = F.concat(F.lit(',"synthetic":'), json_string(F.col("synthetic")))
    return optional_member("tags"), F.coalesce(maker, F.lit(""))


def _cloudevents(prefix: str, rendering: Rendering) -> Column:
    table = F.expr("if(schema = '', `table`, concat(schema, '.', `table`))")
    source = json_text(f"tailrace/{quote(rendering.delivery.pipeline, safe='')}/")[:-1]
    return F.concat(
        F.lit('{"specversion":"1.0","id":"'),
        rendering.event_id,
        F.lit(f'","source":{source}'),
        _uri_segment(table),
        F.lit(f'","type":{json_text(prefix + ".")[:-1]}'),
        _word(EVENT_TYPES),
        F.lit('","time":"'),
        _rfc3339(),
        F.lit('","datacontenttype":"application/json","subject":'),
        json_string(table),
        F.lit(',"data":'),
        *images(),
        F.lit(',"op":"'),
        F.col("op"),
        F.lit('"}}'),
    )


def _helios(rendering: Rendering) -> Column:
    return F.concat(
        F.lit('{"event_id":"'),
        rendering.event_id,
        F.lit('","timestamp":'),
        F.expr("cast(ts_us div 1000 as string)"),
        F.lit(',"sequence":'),
        F.col("seq").cast("string"),
        F.lit(',"operation":"'),
        _word(OPERATIONS),
        F.lit('",'),
        json_members(database="database", table="table"),
        F.lit(',"key":'),
        F.coalesce(base64_string(F.col("key")), F.lit('""')),
        F.lit(',"value":'),
        F.coalesce(base64_string(F.col("after")), F.lit("null")),
        F.lit(',"old_value":'),
        F.coalesce(base64_string(F.col("before")), F.lit("null")),
        F.lit(',"transaction_id":"'),
        F.col("tx_id"),
        F.lit('","metadata":'),
        _metadata(rendering),
        F.lit("}"),
    )


def _metadata(rendering: Rendering) -> Column:
    """Where it is from; a change's own headers win."""
    headers = F.col("headers")
    always = {"source": F.col("source"), "schema": F.col("schema"), "tenant": F.lit(rendering.delivery.tenant)}
    pairs = F.create_map(*(part for name, value in always.items() for part in (F.lit(name), value)))
    others = F.map_filter(pairs, lambda name, _: ~F.map_contains_key(headers, name))
    return F.to_json(F.when(F.size(headers) > 0, F.map_concat(others, headers)).otherwise(pairs))


def _times() -> Column:
    us = F.col("ts_us").cast("string")
    ms = F.expr("cast(ts_us div 1000 as string)")
    return F.concat(F.lit('"ts_ms":'), ms, F.lit(',"ts_us":'), us)


def _word(words: dict[str, str]) -> Column:
    """The word for the change's op."""
    found = F.lit("unknown")
    for op, word in reversed(words.items()):
        found = F.when(F.col("op") == op, F.lit(word)).otherwise(found)
    return found


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
