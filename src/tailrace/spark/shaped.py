"""What a log's tables look like behind a chain of processors: versions, and what a range has of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from tailrace.contracts import Break, Content
from tailrace.errors import ProcessorError
from tailrace.processors.chain import ROW_OPS, processed, with_columns
from tailrace.schema import TableSchema
from tailrace.spark.chain import SinkChain
from tailrace.spark.images import SourceRows, shape


class ShapedVersions:
    """Table versions behind a chain. One whose columns only the data can tell keeps those it had; whoever reads its
    rows asks `check` first."""

    def __init__(self, chain: SinkChain) -> None:
        self._chain, self._known = chain, dict[int, TableSchema]()
        self._errors: dict[int, ProcessorError] = {}

    def of(self, versions: Mapping[int, TableSchema]) -> Mapping[int, TableSchema]:
        """`versions` as they are behind the chain."""
        for number in versions.keys() - self._known.keys():
            self._known[number] = self._shape(versions[number])
        return {number: self._known[number] for number in versions}

    def check(self, version: int) -> None:
        """Raise where nobody can tell what the version looks like."""
        if version in self._errors:
            raise self._errors[version]

    def contents(self, found: Iterable[Content], versions: Mapping[int, TableSchema]) -> list[Content]:
        """What a range has of each version, behind the chain. Any row may have become a delete there."""
        return [self._content(each, versions[each.schema_id]) for each in found]

    def _shape(self, table: TableSchema) -> TableSchema:
        try:
            return shape(self._chain, table)
        except ProcessorError as error:
            self._errors[table.id] = error
            return table

    def _content(self, content: Content, table: TableSchema) -> Content:
        may_delete = table.key and not self._chain.whole.preserves("rows") and content.ops & set(ROW_OPS)
        deletes = self._chain.place.mirror and may_delete
        return replace(
            content,
            ops=content.ops | {"d"} if deletes else content.ops,
            partial_columns=tuple(sorted(self._chain.whole.unsent(content.partial_columns, table))),
            breaks=tuple(self._break(each, table) for each in content.breaks),
        )

    def _break(self, found: Break, table: TableSchema) -> Break:
        """A schema change's defaults are values of rows from before: the chain makes of them what it makes of rows."""
        image = json.loads(found.after or "{}")
        defaults = image.pop("defaults", {})
        if found.op != "s" or not defaults:
            return found
        if not self._chain.runs_here:
            self._errors[table.id] = _unknown_defaults(table)
            return replace(found, after=json.dumps({**image, "defaults": {}}))
        return replace(found, after=json.dumps({**image, "defaults": self._processed(defaults, table)}))

    def _processed(self, defaults: Mapping[str, object], table: TableSchema) -> object:
        """Of a row that has nothing but its defaults. It is not dropped: other columns tell which rows are."""
        image = {"key": None, "after": json.dumps(defaults, ensure_ascii=False)}
        images = pa.RecordBatch.from_pylist([image], pa.schema([("key", pa.string()), ("after", pa.string())]))
        unsent = [each.name for each in table.columns if each.name not in defaults]
        row = processed(SourceRows(self._chain, table).changes(images))
        row = with_columns(row, unchanged=pa.array([unsent], row.schema.field("unchanged").type))
        place = replace(self._chain.place, tables={table.id: table}, mirror=False)
        [after] = self._chain.whole.open(place, keep_dropped=True)(row).column("after").to_pylist()
        return json.loads(str(after))


def _unknown_defaults(table: TableSchema) -> ProcessorError:
    return ProcessorError(
        "processor.unknown_defaults",
        f"rows of {table.name} from before have a default in a new column, and what the chain makes of it only "
        "the rows can tell",
        hint="give the sink another id, then read the table anew: tailrace snapshot PIPELINE.yaml",
        where=table.name,
    )
