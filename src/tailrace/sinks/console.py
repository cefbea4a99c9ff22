"""The console: changes as lines on the driver's standard output, for trying things out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field

from tailrace.contracts import Delivery, RecordSink, Span, Written

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ConsoleSink(RecordSink):
    """Prints one line per change, in the order of the log.

    A repeat is printed again: the console keeps no mark, so delivery is at least once. Of a large batch only
    the first `limit` changes are shown, followed by a line that says how many were not.
    """

    format: Annotated[
        Literal["pretty", "json"],
        Field(description="`pretty`: time, op, table and row; `json`: the record in its envelope."),
    ] = "pretty"
    limit: Annotated[int, Field(ge=1, description="Most changes shown of one batch.")] = 1000

    def columns(self) -> tuple[str, ...]:
        return ("seq", "op", "schema", "table", "key", "before", "after", "ts_us")

    def wants_value(self) -> bool:
        return self.format == "json"

    def open(self, delivery: Delivery, span: Span, task: int) -> _PrintedLines:
        return _PrintedLines(self.format, self.limit)

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        told = [json.loads(receipt) for receipt in receipts if receipt]
        lines = sorted(line for part in told for line in part["lines"])[: self.limit]
        hidden = sum(part["rows"] for part in told) - len(lines)
        text = "".join(f"{line}\n" for _, line in lines)
        sys.stdout.write(text + (f"… and {hidden} more changes\n" if hidden else ""))
        sys.stdout.flush()


class _PrintedLines:
    """A task's share of the lines: its first `limit` by offset travel to the driver in the receipt."""

    def __init__(self, form: Literal["pretty", "json"], limit: int) -> None:
        self._form, self._limit = form, limit

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = 0
        lines: list[tuple[int, str]] = []
        for batch in batches:
            rows += batch.num_rows
            table = pa.Table.from_batches([batch]).sort_by("seq").slice(0, self._limit)
            lines = sorted([*lines, *self._render(table)])[: self._limit]
        return Written(json.dumps({"rows": rows, "lines": lines}, ensure_ascii=False))

    def _render(self, table: pa.Table) -> Iterator[tuple[int, str]]:
        if self._form == "json":
            yield from zip(table["seq"].to_pylist(), table["value"].to_pylist(), strict=True)
            return
        for row in table.to_pylist():
            time = (_EPOCH + timedelta(microseconds=row["ts_us"])).strftime("%H:%M:%S.%f")
            image = row["after"] or row["before"] or row["key"] or ""
            name = ".".join(part for part in (row["schema"], row["table"]) if part)
            yield row["seq"], f"{time}  {row['op']}  {name}  {image}".rstrip()
