"""Changes as a sink would be given them: through its chain, and rendered by its envelope where it gets records. No sink
is asked, and neither marks nor subscribers know of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tailrace.changelog import LogReader, earliest, head
from tailrace.contracts import Delivery, Letter, RecordSink, never
from tailrace.errors import LogError
from tailrace.schema import table_name
from tailrace.spark.preview import SHOWN, Preview
from tailrace.spec import Pipeline
from tailrace.supervisor.explore import LARGEST_PAGE, Explorer, Filter
from tailrace.supervisor.explore.entries import Entry
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.trial import Trial
from tailrace.supervisor.trial.frames import local_spark

From = int | Literal["earliest", "latest"]
STEP, FEWEST = 1_000, 100
"""Changes that are read at once: at most, and however few records are wanted."""
POLL_S = 0.2


@dataclass(frozen=True)
class Record:
    """What a sink is given for a change. `value` is the rendered record, of a sink for tables the change itself;
    `given` is all else that its writer is given."""

    offset: int
    op: str
    table: str
    value: str | None
    given: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        told = {"offset": self.offset, "op": self.op, "table": self.table, "value": self.value}
        return {**self.given, **told}


class Consumer:
    """Of one sink. What it needs is started when it is first asked for records, and ended by `close`."""

    def __init__(self, pipeline: Pipeline, layout: Layout, sink: str | None = None) -> None:
        self._pipeline, self._path = pipeline, layout.log(pipeline.source_id)
        self._sink = Trial.of(pipeline, sink).sink
        self._explorer = Explorer(pipeline, layout, sink=self._sink.id)
        self._folder: Path | None = None
        self._preview: Preview | None = None
        self.set_aside: list[Letter] = []
        """What would have become a dead letter, of the changes that were read so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._explorer.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def records(
        self,
        start: From = "earliest",
        *,
        limit: int | None = None,
        follow: bool = False,
        is_over: Callable[[], bool] = never,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[Record]:
        """From `start` to the log's end; `follow`: and on, until `is_over`. Raises `explore.expired` where the log no
        longer has the beginning, and what the chain raises."""
        at, left = self._start(start), limit
        while not is_over():
            end = min(head(self._path), at + min(STEP, max(left or STEP, FEWEST)))
            if end > at:
                for record in self._between(at, end):
                    yield record
                    left = None if left is None else left - 1
                    if left == 0:
                        return
                at = end
            elif follow:
                sleep(POLL_S)
            else:
                return

    def _start(self, start: From) -> int:
        LogReader(self._path)  # raises `log.missing`
        begins, end = earliest(self._path), head(self._path)
        if start == "earliest":
            return begins
        if start == "latest":
            return end
        if start < begins:
            raise LogError(
                "explore.expired",
                f"offset {start} is no longer in the log, which begins at {begins}",
                hint="begin with --from earliest",
                where=str(self._path),
            )
        return start

    def _between(self, start: int, end: int) -> Iterator[Record]:
        if isinstance(self._sink, RecordSink):
            yield from self._rendered(self._sink, start, end)
        else:
            yield from self._changes(start, end)

    def _rendered(self, sink: RecordSink, start: int, end: int) -> Iterator[Record]:
        if self._preview is None:
            self._preview = self._open(sink)
        batches = list(self._preview.records(start, end))
        self.set_aside += self._preview.set_aside()
        for row in (row for batch in batches for row in batch.to_pylist()):
            seq, op, schema, table = (row.pop(name) for name in SHOWN)
            if "headers" in row:
                row["headers"] = dict(row["headers"] or ())
            yield Record(seq, op, table_name(schema, table), row.pop("value"), row)

    def _open(self, sink: RecordSink) -> Preview:
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-consume-"))
        pipeline = self._pipeline
        return Preview(
            local_spark(),
            self._path,
            sink,
            Delivery(pipeline.name, pipeline.metadata.tenant, pipeline.source_id),
            provenance=pipeline.provenance,
            processors=pipeline.chain(sink),
            folder=self._folder,
        )

    def _changes(self, start: int, end: int) -> Iterator[Record]:
        """Of a sink for tables, which gets changes and no records."""
        cursor = None
        while True:
            wanted = Filter(start=start, end=end)
            page = self._explorer.look(wanted, order="oldest", limit=LARGEST_PAGE, cursor=cursor)
            for entry in page.entries:
                yield from _contents(entry)
            if page.cursor is None:
                return
            cursor = page.cursor


def _contents(entry: Entry) -> Iterator[Record]:
    if entry.failed is not None:
        raise LogError(
            "explore.failed",
            f"the chain fails for the change at offset {entry.offset}: {entry.failed.message}",
            hint="see tailrace test --from-log",
            where=entry.table,
        )
    for each in entry.contents:
        given = {"key": each.key, "before": each.before, "unchanged": list(each.unchanged)}
        yield Record(entry.offset, each.op, entry.table, each.after or each.before or each.key, given)
