"""The outbox at work: which changes are messages, what they say, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.processors.chain import with_columns
from tailrace.processors.images import DROP, Editor, Found
from tailrace.processors.maps import entry
from tailrace.processors.outbox.payloads import objects
from tailrace.processors.routes import routed
from tailrace.processors.tables import TablePatterns, by_table, glob
from tailrace.processors.templates import Fill, Templates
from tailrace.processors.texts import ABSENT, FALSE, NULL, OBJECT, STRING, decoded, kinds, raw

if TYPE_CHECKING:
    from tailrace.processors.outbox import OutboxProcessor

TAG = "tailrace.outbox"
"""The header of changes that the source knows as messages; its value is `true`."""
OTHER, TABLE, MESSAGE = range(3)


class OutboxStep:
    def __init__(self, config: OutboxProcessor, place: Place) -> None:
        self._config, names = config, config.names()
        self._tables = TablePatterns(names.tables)
        self._prefixes = [glob(each) for each in names.prefixes]
        self._templates = Templates(place)
        self._topic, self._key = (self._fill(each) for each in (config.topic, config.key))
        self._columns = _Columns(config)

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        mine, refused = self._sorted(changes)
        if refused.any():
            changes = _dropped(changes, refused, "non_insert")
        return self._published(changes, mine) if mine.any() else changes

    def _sorted(self, changes: pa.RecordBatch) -> tuple[Any, Any]:
        """Which changes are messages, and which are of an outbox and are none."""
        ops = changes.column("op")
        is_message = np.asarray(pc.equal(ops, pa.scalar("m")))
        kind = by_table(changes, self._kind)
        tagged = np.zeros(len(changes), dtype=np.bool_)
        if self._config.by_tag():
            tagged = _yes(pc.equal(entry(changes.column("headers"), TAG), pa.scalar("true")))
        of_table = ((kind & TABLE != 0) | tagged) & ~is_message
        wanted = np.asarray(pc.is_null(changes.column("dropped")))
        moved = np.asarray(pc.is_valid(entry(changes.column("headers"), "old_key")))
        inserted = np.asarray(pc.is_in(ops, pa.array(["c", "r"]))) & ~moved
        mine = wanted & ((of_table & inserted) | (is_message & ((kind & MESSAGE != 0) | tagged)))
        return mine, wanted & of_table & ~inserted

    def _kind(self, database: str, schema: str, table: str) -> int:
        """Whether a table is an outbox, and whether its name is the prefix of such messages."""
        message = MESSAGE if not schema and any(each.match(table) for each in self._prefixes) else OTHER
        return message | (TABLE if schema and self._tables.fit(database, schema, table) else OTHER)

    def _published(self, changes: pa.RecordBatch, mine: Any) -> pa.RecordBatch:
        own = changes.filter(pa.array(mine))
        row = self._columns.read(own.column("after"))
        topic, key = self._where(own, row)
        payload, reasons = self._columns.payload(row, or_rest=not self._config.strict)
        if self._config.strict:
            _refuse(own, {"topic": topic, **row.required()}, payload, reasons)
        route = {"topic": topic, "key": key}
        if self._config.raw_payload:
            route["value"] = pa.repeat("after", len(own))
        headers = {"df-source-kind": pa.repeat("outbox", len(own)), **row.headers()}
        made = with_columns(
            own,
            op=pc.if_else(pc.equal(own.column("op"), pa.scalar("m")), pa.scalar("c"), own.column("op")),
            before=pa.nulls(len(own), pa.string()),
            after=pc.coalesce(payload, own.column("after")),
            unchanged=pa.nulls(len(own), own.schema.field("unchanged").type),
            route=routed(own.column("route"), route, headers),
            dropped=reasons,
        )
        return _among(changes, made, mine)

    def _where(self, own: pa.RecordBatch, row: _Row) -> tuple[Any, Any]:
        """The topic and the key of each message, by the first that has something to say."""
        filler = self._templates.filler(own)
        default = pa.scalar(self._config.default_topic, pa.string())
        topics = [*([_not_empty(self._topic(filler))] if self._topic else []), _not_empty(row.text("topic"))]
        keys = [*([_not_empty(self._key(filler))] if self._key else []), row.text("aggregate_id")]
        topic: Any = pc.coalesce(*topics, default)
        key: Any = pc.coalesce(*keys)
        return topic, key

    def _fill(self, template: str | None) -> Fill | None:
        return None if template is None else self._templates.fill(template)


@dataclass(frozen=True)
class _Row:
    """The rows of messages, and where what they hold stands in them: by role, or by `+HEADER`."""

    images: Any
    found: Found
    slots: Mapping[str, int]

    def text(self, role: str) -> Any:
        """Texts as they read, numbers and truths as they stand; null for everything else."""
        text, starts, ends = self.found.values(self.slots[role])
        kind = kinds(text, starts)
        return decoded(text, np.where((kind >= FALSE) & (kind <= STRING), starts, -1), ends)

    def headers(self) -> dict[str, Any]:
        named = {
            "df-event-id": "event_id",
            "df-aggregate-type": "aggregate_type",
            "df-aggregate-id": "aggregate_id",
            "df-event-type": "event_type",
        }
        more = {role[1:]: role for role in self.slots if role.startswith("+")}
        return {name: self.text(role) for name, role in {**named, **more}.items()}

    def required(self) -> dict[str, Any]:
        return {role: self.text(role) for role in ("aggregate_type", "aggregate_id", "event_type")}


class _Columns:
    """What a configuration calls the columns of a row, ready to be read."""

    def __init__(self, config: OutboxProcessor) -> None:
        roles = {
            **config.columns.model_dump(),
            **{f"+{name}": each for name, each in config.additional_headers.items()},
        }
        self._editor = Editor()
        root = self._editor.paths.root()
        columns = dict.fromkeys(roles.values())
        slots = {column: self._editor.slot(DROP) for column in columns}
        for column, slot in slots.items():
            self._editor.paths.add(root, (column,), slot)
        self._slots = {role: slots[column] for role, column in roles.items()}

    def read(self, images: Any) -> _Row:
        return _Row(images, self._editor(images, np.zeros(len(images), dtype=np.int64)), self._slots)

    def payload(self, row: _Row, *, or_rest: bool) -> tuple[Any, Any]:
        """The payload of each row, and why it is none. `or_rest`: without its column, the rest of the row is."""
        text, starts, ends = row.found.values(self._slots["payload"])
        kind = kinds(text, starts)
        found: Any = raw(text, np.where(kind == OBJECT, starts, -1), ends)
        if (kind == STRING).any():
            found = pc.coalesce(found, objects(decoded(text, np.where(kind == STRING, starts, -1), ends)))
        if or_rest and (kind == ABSENT).any():
            rest = self._editor.apply(row.found)
            found = pc.if_else(pa.array(kind == ABSENT), rest, found)
        reasons = pc.if_else(pa.array(kind <= NULL), pa.scalar("null_payload"), pa.scalar("non_object"))
        return found, pc.if_else(pc.is_valid(found), pa.scalar(None, pa.string()), reasons)


def _refuse(own: pa.RecordBatch, required: Mapping[str, Any], payload: Any, reasons: Any) -> None:
    """Stop at the first message that lacks something."""
    lacking = {**{name: pc.is_null(each) for name, each in required.items()}, "payload": pc.is_null(payload)}
    lost = np.logical_or.reduce([np.asarray(each) for each in lacking.values()])
    if not lost.any():
        return
    at = int(np.flatnonzero(lost)[0])
    row = {name: own.column(name)[at].as_py() for name in ("schema", "table", "op", "seq", "position")}
    table = f"{row['schema']}.{row['table']}" if row["schema"] else row["table"]
    names = [name for name, each in lacking.items() if each[at].as_py()]
    bad = " (it is no JSON object)" if reasons[at].as_py() == "non_object" else ""
    raise ProcessorError(
        "processor.incomplete_message",
        f"a message of {table} has no {' and no '.join(names)}{bad}",
        hint="fill the columns, name others in `columns`, or leave `strict` out",
        where=f"{table}, {row['op']} at offset {row['seq']}, position {row['position']}",
    )


def _among(changes: pa.RecordBatch, made: pa.RecordBatch, mine: Any) -> pa.RecordBatch:
    """`changes`, with those that `mine` says as they were made."""
    if mine.all():
        return made
    places = np.arange(len(changes), dtype=np.int64)
    places[mine] = len(changes) + np.arange(len(made))
    columns = zip(changes.columns, made.columns, strict=True)
    taken = [pa.concat_arrays([old, new]).take(pa.array(places, pa.int64())) for old, new in columns]
    return pa.RecordBatch.from_arrays(taken, schema=changes.schema)


def _dropped(changes: pa.RecordBatch, rows: Any, reason: str) -> pa.RecordBatch:
    reasons = pc.if_else(pa.array(rows), pa.scalar(reason), changes.column("dropped"))
    return with_columns(changes, dropped=reasons)


def _not_empty(texts: Any) -> Any:
    return pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, pa.string()), texts)


def _yes(answers: Any) -> Any:
    return np.asarray(answers.fill_null(False))
