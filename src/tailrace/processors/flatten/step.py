"""The flatten at work: images are taken apart, names that come twice settled, and what is left put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.json_members import Paths
from tailrace.processors.chain import with_columns
from tailrace.processors.declared import UNDECLARED
from tailrace.processors.flatten.leaves import DROP, FIRST, FORM, LAST, MADE, NULL, PRESERVE, REFUSE, ROW, Leaves, Rules
from tailrace.processors.flatten.unsent import with_more
from tailrace.processors.tables import versions
from tailrace.schema import TableSchema

if TYPE_CHECKING:
    from tailrace.processors.flatten import FlattenProcessor

_EMPTY = {"preserve": PRESERVE, "drop": DROP, "null": NULL}
_RULES = {"last": LAST, "first": FIRST, "error": REFUSE}
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Version:
    """What is done to a version of a table. `root`: the trie of the columns that stay whole; -1: all do. `known`: the
    columns that its rows may have behind it; None: any."""

    table: TableSchema
    root: int
    opens: tuple[str, ...]
    known: pa.Array[Any] | None


class FlattenStep:
    def __init__(self, config: FlattenProcessor, place: Place) -> None:
        self._config, self._place = config, place
        self._rules = Rules(
            config.separator.encode(),
            _ENDLESS if config.max_depth is None else config.max_depth,
            config.lists == "index",
            _EMPTY[config.empty_object],
            _EMPTY[config.empty_list],
        )
        self._closed = Paths.none()
        self._versions: dict[int, Version] = {}

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        tables, which = versions(changes, self._place.tables)
        found = [self._version(table) for table in tables]
        rows = np.asarray(pc.is_in(changes.column("op"), pa.array(["c", "u", "d", "r"])))
        rows = rows & np.asarray(pc.is_null(changes.column("dropped")))
        roots = np.where(rows, np.array([each.root for each in found], dtype=np.int64)[which], -1)
        if not (roots >= 0).any():
            return changes
        made = {name: self._flat(changes, name, roots, found, which) for name in ("before", "after")}
        return with_columns(changes, **made, unchanged=self._unsent(changes, made["after"], roots, found, which))

    def _version(self, table: TableSchema) -> Version:
        if table.id not in self._versions:
            self._versions[table.id] = self._planned(table)
        return self._versions[table.id]

    def _planned(self, table: TableSchema) -> Version:
        config = self._config
        opens = config.opens(table)
        if not config.concerns(table):
            return Version(table, -1, (), None)
        names = [column.name for column in table.columns]
        root = self._closed.root()
        for name in dict.fromkeys([*table.key, UNDECLARED, *(name for name in names if name not in opens)]):
            self._closed.add(root, (name,), 0)
        known = None if config.columns is None else pa.array([*names, *config.columns], pa.string())
        return Version(table, root, opens, known)

    def _flat(self, changes: pa.RecordBatch, image: str, roots: Any, found: Sequence[Version], which: Any) -> Any:
        images = changes.column(image)
        if images.null_count == len(images):
            return images
        leaves = self._rules.take_apart(images, roots, self._closed)
        if not leaves.touched.any():
            return images
        stays, twice = leaves.settled(_RULES[self._config.on_collision])
        if twice >= 0:
            raise _collision(changes, leaves, twice)
        return leaves.joined(stays, _undeclared(leaves, found, which), UNDECLARED)

    def _unsent(self, changes: pa.RecordBatch, after: Any, roots: Any, found: Sequence[Version], which: Any) -> Any:
        """What was made of a column that was not sent was not sent either."""
        unchanged = changes.column("unchanged")
        if self._config.columns is None or not len(pc.list_flatten(unchanged)):
            return unchanged
        if self._place.mirror:
            for number, names in _distinct(unchanged, np.where(roots >= 0, which, -1)):
                self._refuse_unknown(found[number], names)
        more = [{name: self._config.made(name) for name in each.opens} for each in found]
        return with_more(unchanged, after, more, np.where(roots >= 0, which, -1))

    def _refuse_unknown(self, version: Version, unsent: Sequence[str]) -> None:
        """Columns that may be made of several others are not known as soon as one of those is not."""
        lost = [name for name in version.opens if name in unsent]
        prefixes = tuple(name + self._config.separator for name in lost)
        names = [column.name for column in version.table.columns]
        if lost and (len(lost) < len(version.opens) or any(name.startswith(prefixes) for name in names)):
            table = version.table
            raise ProcessorError(
                "processor.unsent_value",
                f"the source did not send `{lost[0]}` with a change, so nobody knows the columns made of it and others",
                hint=f"ALTER TABLE {table.name} REPLICA IDENTITY FULL, or leave one of the columns out by `transform`",
                where=table.name,
            )


def _distinct(unchanged: Any, which: Any) -> Iterator[tuple[int, list[str]]]:
    """The lists of names there are in changes of each version (-1: they do not matter)."""
    joined: Any = pc.binary_join(unchanged, "\0")
    encoded = joined.dictionary_encode()
    rows = np.flatnonzero((which >= 0) & np.asarray(encoded.is_valid()))
    pairs = np.column_stack([which[rows], np.asarray(encoded.indices.fill_null(0))[rows]])
    for row in rows[np.unique(pairs, axis=0, return_index=True)[1]]:
        yield int(which[row]), unchanged[int(row)].as_py()


def _undeclared(leaves: Leaves, found: Sequence[Version], which: Any) -> Any:
    """Which of these columns were made and nobody declared."""
    gathered = np.zeros(len(leaves.found), dtype=np.bool_)
    made = np.flatnonzero(leaves.found[:, FORM] >= MADE)
    of = which[leaves.found[made, ROW]]
    for number, version in enumerate(found):
        mine = made[of == number]
        if version.known is not None and len(mine):
            gathered[mine] = ~np.asarray(pc.is_in(leaves.name(mine), version.known))
    return gathered


def _collision(changes: pa.RecordBatch, leaves: Leaves, twice: int) -> ProcessorError:
    names = ("schema", "table", "op", "seq", "position")
    row = {name: changes.column(name)[int(leaves.found[twice, ROW])].as_py() for name in names}
    [column] = leaves.name(np.array([twice])).to_pylist()
    return ProcessorError(
        "processor.collision",
        f"two columns of a row of {row['schema']}.{row['table']} would be called `{column}`",
        hint="choose another `separator`, or `on_collision: last` or `first`",
        where=f"{row['schema']}.{row['table']}, {row['op']} at offset {row['seq']}, position {row['position']}",
    )
