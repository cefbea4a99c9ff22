"""Records and keys as Debezium writes them, around images that have its values already."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tailrace import __version__
from tailrace.config import DebeziumEnvelope
from tailrace.contracts import Member, Provenance
from tailrace.render.debezium.schemas import KEY_SCHEMA, VALUE_SCHEMA
from tailrace.render.debezium.semantics import connect
from tailrace.render.rendering import Rendering, base64_string, images, json_members, json_string, json_text, member

_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
_ALONE = r'^\{{"{}": "([^"\\]|\\.)*"\}}$'
"""An image of one member."""
_NOT_IN_TOPICS = "[^a-zA-Z0-9._-]"


def message_value(envelope: DebeziumEnvelope, rendering: Rendering) -> Column:
    """A record's value."""
    change = F.concat(*images(), *_source(rendering), F.lit(',"transaction":null,"op":"'), F.col("op"), F.lit('",'))
    change = F.concat(change, _processed_at(), F.lit("}"))
    payload = F.when(F.col("op") == "m", _logical_message(rendering)).otherwise(change)
    if not envelope.wrapper:
        return payload
    schema = _schema(rendering) if envelope.schemas else F.lit("null")
    return F.concat(F.lit('{"schema":'), schema, F.lit(',"payload":'), payload, F.lit("}"))


def message_key(envelope: DebeziumEnvelope, rendering: Rendering) -> Column:
    """A record's key: of a logical message its prefix, else the row's; null where the row has none."""
    prefix = F.concat(F.lit('{"prefix":'), json_string(F.col("table")), F.lit("}"))
    key = F.when(F.col("op") == "m", prefix).otherwise(F.col("key"))
    if not envelope.schemas:
        return key
    package = rendering.provenance.debezium_package
    message = _struct(f"{package}.MessageKey", [_field("string", "prefix", optional=True)], 1)
    opening = F.concat(F.lit('{"type":"struct","fields":'), F.col("route")[KEY_SCHEMA])
    row = F.concat(opening, F.lit(',"optional":false,"name":"'), _name(rendering), F.lit('.Key"}'))
    schema = F.when(F.col("op") == "m", F.lit(_json(message))).otherwise(F.coalesce(row, F.lit("null")))
    return F.concat(F.lit('{"schema":'), schema, F.lit(',"payload":'), key, F.lit("}"))


def _source(rendering: Rendering, members: tuple[Member, ...] | None = None) -> tuple[Column, ...]:
    provenance = rendering.provenance
    version, name = f"tailrace-{__version__}", json_text(rendering.delivery.pipeline)
    us = F.col("ts_us").cast("string")
    return (
        F.lit(
            f',"source":{{"version":"{version}","connector":{json_text(provenance.connector)},"name":{name},"ts_ms":'
        ),
        F.expr("cast(ts_us div 1000 as string)"),
        F.when(F.col("op") == "r", F.lit(',"snapshot":"true",')).otherwise(F.lit(',"snapshot":"false",')),
        json_members(db="database"),
        *member(Member("sequence", provenance.debezium_sequence)),
        F.concat(F.lit(',"ts_us":'), us, F.lit(',"ts_ns":'), us, F.lit("000")),
        *(part for each in members or provenance.debezium for part in member(each)),
        F.lit("}"),
    )


def _processed_at() -> Column:
    us = F.col("captured_us").cast("string")
    ms = F.expr("cast(captured_us div 1000 as string)")
    return F.concat(F.lit('"ts_ms":'), ms, F.lit(',"ts_us":'), us, F.lit(',"ts_ns":'), us, F.lit("000"))


def _logical_message(rendering: Rendering) -> Column:
    """Its prefix is no table, and its content is bytes again: of what was no JSON object, those that the image has in a
    member of its own."""
    nameless = {"schema": "''", "table": "''"}
    members = tuple(Member(m.name, nameless.get(m.name, m.sql), m.json) for m in rendering.provenance.debezium)
    return F.concat(
        F.lit('{"op":"m","ts_ms":'),
        F.expr("cast(captured_us div 1000 as string)"),
        *_source(rendering, members),
        F.lit(',"transaction":null,"message":{"prefix":'),
        json_string(F.col("table")),
        F.lit(',"content":'),
        _content(F.coalesce(F.col("after"), F.lit("null"))),
        F.lit("}}"),
    )


def _content(image: Column) -> Column:
    text, data = (F.get_json_object(image, f"$.{name}") for name in ("content", "content_base64"))
    return (
        F.when(image.rlike(_ALONE.format("content")), base64_string(text))
        .when(image.rlike(_ALONE.format("content_base64")), json_string(data))
        .otherwise(base64_string(image))
    )


def _schema(rendering: Rendering) -> Column:
    """The Connect schema of a record; null where it has none, as a schema change."""
    provenance, name = rendering.provenance, _name(rendering)
    fields = F.col("route")[VALUE_SCHEMA]
    image = F.concat(
        F.lit('{"type":"struct","fields":'),
        fields,
        F.lit(',"optional":true,"name":"'),
        name,
        F.lit('.Value","field":"'),
    )
    rest = ",".join(_json(each) for each in (_source_schema(provenance), _TRANSACTION, _OP, *_TIMES))
    change = F.concat(
        F.lit('{"type":"struct","fields":['),
        image,
        F.lit('before"},'),
        image,
        F.lit(f'after"}},{rest}],"optional":false,"name":"'),
        name,
        F.lit('.Envelope","version":2}'),
    )
    package = provenance.debezium_package
    parts = [_OP, _TIMES[0], _source_schema(provenance), _TRANSACTION, _message_schema(package)]
    message = _struct(f"{package}.MessageValue", parts, 1)
    return F.when(F.col("op") == "m", F.lit(_json(message))).otherwise(F.coalesce(change, F.lit("null")))


def _name(rendering: Rendering) -> Column:
    """`pipeline.schema.table`, as topics may be called."""
    whole = F.concat_ws(".", F.lit(rendering.delivery.pipeline), F.col("schema"), F.col("table"))
    return F.when(whole.rlike(_NOT_IN_TOPICS), F.regexp_replace(whole, _NOT_IN_TOPICS, "_")).otherwise(whole)


def _source_schema(provenance: Provenance) -> dict[str, Any]:
    snapshot = connect(
        {
            "type": "string",
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": _SNAPSHOTS},
            "default": "false",
        },
        optional=True,
        field="snapshot",
    )
    common = [
        *(_field("string", name) for name in ("version", "connector", "name")),
        _field("int64", "ts_ms"),
        snapshot,
        _field("string", "db"),
        _field("string", "sequence", optional=True),
        *(_field("int64", name, optional=True) for name in ("ts_us", "ts_ns")),
    ]
    bases = {"number": "int64", "string": "string"}
    own = [_field(bases[each.json], each.name, optional=each.optional) for each in provenance.debezium]
    return {**_struct(f"{provenance.debezium_package}.Source", [*common, *own], 1), "field": "source"}


def _message_schema(package: str) -> dict[str, Any]:
    fields = [_field("string", "prefix", optional=True), _field("bytes", "content", optional=True)]
    return {**_struct(f"{package}.Message", fields, 1), "field": "message"}


def _field(base: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    return connect({"type": base}, optional=optional, field=name)


def _struct(name: str, fields: list[dict[str, Any]], version: int) -> dict[str, Any]:
    return connect({"type": "struct", "fields": fields, "name": name, "version": version}, optional=False)


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


_OP = _field("string", "op")
_TIMES = tuple(_field("int64", name, optional=True) for name in ("ts_ms", "ts_us", "ts_ns"))
_ORDERS = [_field("int64", name) for name in ("total_order", "data_collection_order")]
_TRANSACTION = {
    **_struct("event.block", [_field("string", "id"), *_ORDERS], 1),
    "optional": True,
    "field": "transaction",
}
