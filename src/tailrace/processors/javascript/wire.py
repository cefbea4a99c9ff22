"""Changes as a script's engine gets them, and what it answered."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import __version__
from tailrace.change import event_id
from tailrace.contracts import Place
from tailrace.processors.outcome import Made, Outcome, merged_route, patched
from tailrace.processors.user_code import Piece

IMAGES = ("key", "before", "after")
RISKY = "\x02"
"""Stands before an image that may have integers beyond 2^53."""
_BETWEEN = "\x01"
_LONG_NUMBER = r"\d{16}"


def images_of(changes: pa.RecordBatch) -> str:
    """Key, before and after of each change, one after another; a null is empty."""
    images: list[Any] = [changes.column(name) for name in IMAGES]
    columns = [_marked(pc.fill_null(image, "")) for image in images]
    joined = pc.binary_join_element_wise(*columns, _BETWEEN)
    return _BETWEEN.join(joined.to_pylist())


def _marked(images: Any) -> Any:
    risky = pc.match_substring_regex(images, _LONG_NUMBER)
    if not pc.any(risky).as_py():
        return images
    return pc.if_else(risky, pc.binary_join_element_wise(RISKY, images, ""), images)


def meta_of(changes: pa.RecordBatch, place: Place) -> str:
    """The rest of each change, column by column; what the changes of a table have in common is there once."""
    rows: dict[str, list[Any]] = {name: changes.column(name).to_pylist() for name in _READ}
    names = list(zip(rows["database"], rows["schema"], rows["table"], strict=True))
    tables = {each: number for number, each in enumerate(dict.fromkeys(names))}
    ids = zip(rows["source"], rows["position"], rows["tx_ordinal"], rows["part"], strict=True)
    return json.dumps(
        {
            "op": rows["op"],
            "table": [tables[each] for each in names],
            "tables": [_source(*each, place) for each in tables],
            "ts_us": rows["ts_us"],
            "at": rows["position"],
            "tx_id": rows["tx_id"],
            "order": [ordinal + 1 for ordinal in rows["tx_ordinal"]],
            "event_id": [event_id(*each) for each in ids],
            "tenant_id": place.tenant,
            "tx_end": [[at, True] for at, last in enumerate(rows["tx_last"]) if last],
            "headers": [[at, dict(value)] for at, value in enumerate(rows["headers"]) if value],
            **{name: _said(rows[name]) for name in ("unchanged", "tags", "synthetic")},
        },
        ensure_ascii=False,
    )


_READ = (
    *("op", "database", "schema", "table", "ts_us", "tx_id", "tx_ordinal", "tx_last", "position"),
    *("source", "part", "headers", "unchanged", "tags", "synthetic"),
)


def _source(database: str, schema: str, table: str, place: Place) -> dict[str, str]:
    """What the member `source` of a native record has of a table."""
    who = {"version": f"tailrace-{__version__}", "connector": place.connector, "name": place.pipeline}
    return {**who, "db": database, "schema": schema, "table": table}


def _said(values: list[Any]) -> list[list[Any]]:
    return [[at, value] for at, value in enumerate(values) if value]


def outcome_of(answer: dict[str, Any], batch: pa.RecordBatch, piece: Piece) -> Outcome:
    """What a script's answer means for the batch that the piece is of."""
    outcome = Outcome(dropped={piece[at]: "dropped" for at in answer["dropped"]})
    for at, columns in answer["changed"]:
        place = piece[at]
        for name, value in columns.items():
            outcome.changed[name][place] = _value(name, value, batch, place)
    for at, columns, created in answer["made"]:
        own = {name: _value(name, value, batch, piece[at], created) for name, value in columns.items()}
        outcome.made.append(Made(piece[at], own))
    return outcome


def _value(name: str, value: Any, batch: pa.RecordBatch, place: int, created: bool = False) -> Any:
    if name == "route":
        return merged_route(None if created else batch.column(name)[place].as_py(), value)
    if name in IMAGES and isinstance(value, list):
        return patched(batch.column(name)[place].as_py(), [tuple(each) for each in value])
    return value
