"""Changes to try a chain out on: from a file of JSON lines, or the last ones of a change log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.change import CHANGES, OPS
from tailrace.changelog import LogReader
from tailrace.errors import ConfigError
from tailrace.kinds import OTHER, Kind
from tailrace.processors.outcome import members
from tailrace.schema import Column, TableSchema
from tailrace.supervisor.inspect.log import read

IMAGES = ("key", "before", "after")
_MEMBERS = frozenset({*IMAGES, "op", "table", "source", "ts_ms", "ts_us", "transaction", "unchanged", "headers"})
_IGNORED = frozenset({"event_id", "tenant_id", "tx_end", "tags", "synthetic"})
"""Members of a native record that are of its delivery."""


@dataclass(frozen=True)
class Samples:
    """Changes, and the versions of their tables by `schema_id`."""

    changes: pa.RecordBatch
    tables: Mapping[int, TableSchema]


def from_log(path: Path, count: int) -> Samples:
    """The last `count` changes of a log, or all it has."""
    reader = LogReader(path)
    seen = -1
    while reader.end != seen:
        seen = reader.end
        reader.forget(seen)
        reader.refresh()
    batches = list(read(path, max(reader.earliest, seen - count), count))
    changes = pa.Table.from_batches(batches, schema=CHANGES).sort_by("seq").combine_chunks()
    return Samples(_one(changes), reader.schemas)


def from_file(path: Path, source: str) -> Samples:
    """One change a line: a native record, or `{table, op, before, after, key}`, of which the table and an image are
    needed. Images keep the text that they have."""
    lines = list(_lines(path))
    tables = _tables(lines)
    numbers = {(table.schema, table.table): table.id for table in tables}
    rows = [_row(seq, line, source, numbers) for seq, line in enumerate(lines)]
    return Samples(pa.RecordBatch.from_pylist(rows, schema=CHANGES), {table.id: table for table in tables})


@dataclass(frozen=True)
class _Line:
    """A line, its images as texts and all else as values."""

    images: Mapping[str, str | None]
    values: Mapping[str, Any]

    @property
    def op(self) -> str:
        before, after = (self.images[name] for name in ("before", "after"))
        return str(self.values.get("op") or ("c" if before is None else "d" if after is None else "u"))

    @property
    def names(self) -> tuple[str, str, str]:
        """Database, schema and table."""
        source = self.values.get("source") or {}
        schema, _, table = str(self.values.get("table") or "").rpartition(".")
        schema = schema or source.get("schema") or "public"
        return source.get("db") or "", schema, table or source.get("table") or ""


def _lines(path: Path) -> Iterator[_Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError("config.unreadable", "cannot be read", hint="check the path", where=str(path)) from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield _line(line.strip())
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                reason = str(error) if isinstance(error, _BadSampleError) else "it is not a JSON object"
                hint = 'a line is like {"table": "shop.orders", "op": "c", "after": {"id": 1}}'
                where = f"{path}:{number}"
                raise ConfigError("config.bad_sample", f"not a change: {reason}", hint=hint, where=where) from None


class _BadSampleError(ValueError):
    """What is wrong with a line."""


def _line(text: str) -> _Line:
    whole = json.loads(text)
    texts = members(text)
    unknown = sorted(texts.keys() - _MEMBERS - _IGNORED)
    if unknown:
        raise _BadSampleError(f"nothing is known of a member `{unknown[0]}`")
    images = {name: None if whole.get(name) is None else texts[name] for name in IMAGES}
    line = _Line(images, {name: value for name, value in whole.items() if name not in IMAGES})
    if not line.names[2]:
        raise _BadSampleError("it has no `table`")
    if line.op not in OPS:
        raise _BadSampleError(f"there is no op `{line.op}`")
    if line.op not in ("m", "t", "s") and not any(images.values()):
        raise _BadSampleError("it has neither before, after nor key")
    return line


def _row(seq: int, line: _Line, source: str, numbers: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    database, schema, table = line.names
    values = line.values
    transaction = values.get("transaction") or {}
    ts_us = values.get("ts_us") or (values.get("ts_ms") or 0) * 1000
    return {
        **{"seq": seq, "lane": 0, "source": source, "op": line.op, "schema_id": numbers[schema, table]},
        **{"database": database, "schema": schema, "table": table, **line.images},
        **{"unchanged": values.get("unchanged"), "headers": list((values.get("headers") or {}).items()) or None},
        **{"ts_us": ts_us, "captured_us": ts_us, "position": f"0/{seq:X}"},
        "tx_id": str(transaction.get("id") or seq),
        "tx_ordinal": int(transaction.get("total_order") or 1) - 1,
        "tx_last": True,
    }


def _tables(lines: list[_Line]) -> list[TableSchema]:
    """What the images say of their tables: columns in the order they are met, kinds by their values."""
    kinds: dict[tuple[str, str, str], dict[str, Kind]] = {}
    keys: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for line in lines:
        known = kinds.setdefault(line.names, {})
        for image in filter(None, line.images.values()):
            for name, kind in _kinds(image).items():
                met = known.setdefault(name, kind)
                known[name] = kind if met == OTHER else met if kind in (met, OTHER) else Kind("json")
        if line.images["key"]:
            keys[line.names] = tuple(_kinds(line.images["key"]))
    return [
        TableSchema(number, *names, _columns(found), keys.get(names, ()))
        for number, (names, found) in enumerate(kinds.items())
    ]


def _columns(kinds: Mapping[str, Kind]) -> tuple[Column, ...]:
    return tuple(
        Column(name, str(kind), number=place, kind=kind) for place, (name, kind) in enumerate(kinds.items(), 1)
    )


def _kinds(image: str) -> dict[str, Kind]:
    found = json.loads(image)
    return {name: _kind(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _kind(value: object) -> Kind:
    match value:
        case bool():
            return Kind("bool")
        case int():
            return Kind("int64")
        case float():
            return Kind("float64")
        case str():
            return Kind("text")
        case None:
            return OTHER
        case _:
            return Kind("json")


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=CHANGES)
