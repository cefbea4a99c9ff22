"""The outbox tag: which changes are messages of an application, for the processor that turns them into records.

Tagged are logical messages with an outbox prefix and inserts into outbox tables; updates and deletes of those
(housekeeping) are not. The tag is the header `tailrace.outbox` = `true`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.capture.postgres import setup
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.patterns import TablePatterns, glob
from tailrace.change import OPS
from tailrace.contracts import Frame
from tailrace.schema import TableSchema

TAG = "tailrace.outbox"
HEADERS = {TAG: "true"}
_TEXT = f'{{"{TAG}":"true"'
_MOVED = '"old_key":'
"""A row that changed its key is a delete and a create; that create is no insert."""


class Prefixes:
    """Which prefixes of logical messages are the outbox's; `*` stands for any characters."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [glob(pattern) for pattern in patterns]

    def match(self, prefix: str) -> bool:
        return any(pattern.match(prefix) for pattern in self._patterns)


class OutboxTagger:
    """A source's outbox: which of its tables and messages are, and the tag on what they bring."""

    def __init__(self, prefixes: Iterable[str], tables: tuple[str, ...]) -> None:
        self._prefixes = Prefixes(prefixes)
        self._tables = TablePatterns(tables) if tables else None
        self._ids: set[int] = set()

    def meet(self, schema: TableSchema, catalog: PostgresCatalog) -> None:
        """A version whose rows may follow."""
        if self._tables is not None and setup.fits(catalog, self._tables, schema.schema, schema.table):
            self._ids.add(schema.id)

    def headers(self, prefix: str) -> dict[str, str] | None:
        """The headers of a logical message with this prefix."""
        return HEADERS if self._prefixes.match(prefix) else None

    def tagged(self, frame: Frame | None) -> Frame | None:
        """`frame` with the tag on every insert into a table of the outbox."""
        return tagged(frame, self._ids) if frame is not None and self._ids else frame


def tagged(frame: Frame, schema_ids: Collection[int]) -> Frame:
    """`frame` with the tag on every insert into a table of `schema_ids`."""
    rows = frame.rows
    headers = rows.column("headers")
    ids, ops = (rows.column(name).to_numpy() for name in ("schema_id", "op"))
    moved = pc.match_substring(headers, _MOVED).fill_null(False).to_numpy(zero_copy_only=False)
    inserts = np.isin(ids, sorted(schema_ids)) & (ops == OPS.index("c")) & ~moved
    with_tag = pc.coalesce(pc.replace_substring(headers, "{", _TEXT + ",", max_replacements=1), pa.scalar(_TEXT + "}"))
    changed = pc.if_else(pa.array(inserts), with_tag, headers)
    return replace(frame, rows=rows.set_column(rows.schema.get_field_index("headers"), "headers", changed))
