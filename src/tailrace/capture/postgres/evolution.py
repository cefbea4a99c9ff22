"""The content of an `s` change: a table's new version, what is different, and what older rows have in new columns."""

from __future__ import annotations

import json

import numpy as np

from tailrace.capture.postgres.json_text import JsonKind, put_value, room
from tailrace.capture.postgres.relations import Catalog, TypeInfo, kinds_of
from tailrace.errors import SourceError
from tailrace.schema import Difference, TableSchema, differences, document


def texts(before: TableSchema, after: TableSchema, catalog: Catalog) -> tuple[str, str]:
    """(`before`, `after`) of the `s` change between two versions, as JSON text."""
    steps = differences(before, after)
    text = json.dumps({**document(after), "changes": steps}, ensure_ascii=False)
    defaults = _defaults(steps, after, catalog)
    members = ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in defaults.items())
    return json.dumps(document(before), ensure_ascii=False), f'{text[:-1]}, "defaults": {{{members}}}}}'


def drifted(before: TableSchema, after: TableSchema) -> SourceError:
    """What `on_schema_drift: halt` stops with."""
    what = ", ".join(_spoken(step) for step in differences(before, after))
    return SourceError(
        "source.schema_drift",
        f"{after.name} has changed: {what}",
        hint="to go on with the new version set source.on_schema_drift to adapt; nothing of it was captured yet",
        where=after.name,
    )


def value_json(text: str, info: TypeInfo) -> str:
    """A value's JSON, by the mapper that rows go through."""
    data = np.frombuffer(bytearray(text.encode()), dtype=np.uint8)
    out = np.empty(int(room(data, 0, len(data))) + 64, dtype=np.uint8)
    kind, element, delimiter = (int(each) for each in kinds_of(info))
    end = put_value(data, 0, len(data), kind, element, delimiter, out, 0)
    return bytes(out[:end]).decode()


def _defaults(steps: list[Difference], after: TableSchema, catalog: Catalog) -> dict[str, str]:
    """What rows from before have in the added columns, as far as the catalog still has these. One that has another type
    by now has lost its value, unless both are texts: then it was not touched."""
    names = {step["column"] for step in steps if step["kind"] == "add"}
    added = {column.number: column for column in after.columns if column.name in names and column.number}
    found = {}
    for each in catalog.attributes(after.relation) if added else ():
        if each.missing is not None and each.number in added:
            info = catalog.type_info(each.type_oid, each.type_modifier)
            if info.name == added[each.number].type or kinds_of(info)[0] == JsonKind.TEXT:
                found[added[each.number].name] = value_json(each.missing, info)
    return found


def _spoken(step: Difference) -> str:
    match step["kind"]:
        case "add" | "drop":
            return f"{step['kind']} column {step['column']}"
        case "rename":
            return f"rename column {step['from']} to {step['to']}"
        case "retype":
            return f"column {step['column']} from {step['from']} to {step['to']}"
        case "key":
            return f"key ({', '.join(step['from'])}) to ({', '.join(step['to'])})"
        case kind:
            return {"drop_table": "it was dropped", "create": "it is there again", "recreate": "it was made anew"}[kind]
