"""A slow oracle for routing templates, and templates for it: plain Python, one change at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailrace import __version__
from tailrace.change import event_id
from tailrace.config import Reference, parse_template
from tailrace.json_members import split

CHANGE: dict[str, Any] = {
    "op": "u",
    "key": '{"id":7,"part":"a"}',
    "before": '{"id":7}',
    "after": '{"id":7,"name":"Žofie \\"Z\\"","price":"12.50","ok":true,"none":null,"empty":"",'
    '"n a":1,"j":{"x":[1,{"y":2}],"deep":{"er":"é"}}}',
}
TEMPLATES = (
    "orders.cdc",
    "a $$ sign",
    "${source.schema}.${source.table}",
    "${source.db}/${source.name}/${source.connector}",
    "${source.version}",
    "${source.lsn}-${source.txId}-${source.ts_ms}",
    "${op}-${tenant_id}",
    "${event_id}",
    "${key.id}${key.part}",
    "${before.id}",
    "${after.name}",
    "${after.price} ${after.ok} ${after.n a}",
    "${after.j}",
    "${after.j.deep.er}",
    "x${after.empty}",
    "${after.none}",
    "static-${after.missing}",
    "${after.name.deeper}",
    "${before.name}",
    "",
)


def filled(template: str, change: Mapping[str, Any], *, tenant: str, pipeline: str) -> str | None:
    """What the template is for a change with the canonical columns."""
    parts = [
        part if isinstance(part, str) else _hole(part, change, tenant, pipeline) for part in parse_template(template)
    ]
    return None if None in parts else "".join(map(str, parts))


def _hole(hole: Reference, change: Mapping[str, Any], tenant: str, pipeline: str) -> str | None:
    match hole.path:
        case ("op",):
            return str(change["op"])
        case ("tenant_id",):
            return tenant
        case ("event_id",):
            return event_id(change["source"], change["position"], change["tx_ordinal"], change.get("part"))
        case ("source", name):
            return _source(name, change, pipeline)
        case (image, *path):
            return _value(change[image], path)
        case _:
            raise AssertionError(hole)


def _source(name: str, change: Mapping[str, Any], pipeline: str) -> str:
    high, low = change["position"].split("#")[0].split("/")
    found: dict[str, str] = {
        "db": change["database"],
        "schema": change["schema"],
        "table": change["table"],
        "connector": "postgresql",
        "name": pipeline,
        "version": f"tailrace-{__version__}",
        "ts_ms": str(change["ts_us"] // 1000),
        "lsn": str((int(high, 16) << 32) + int(low, 16)),
        "txId": change["tx_id"],
    }
    return found[name]


def _value(text: str | None, path: list[str]) -> str | None:
    for name in path:
        text = split(text).get(name) if text is not None and text.startswith("{") else None
    if text is None or text == "null":
        return None
    return json.loads(text) if text.startswith('"') else text
