"""What a transform does to one version of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tailrace.errors import ProcessorError
from tailrace.kinds import Kind
from tailrace.processors.tables import TablePatterns
from tailrace.processors.transform.columns import Drop, Edits, FieldMapping, Keep, MappedField, Metadata, Rename
from tailrace.processors.transform.masks import Hash, Mask
from tailrace.schema import Column, TableSchema

Path = tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """`hidden`: by path the mask or hash, as its place in `edits`. `kept`: the only columns that stay; None: all.
    `added` and `headers`: values by the names of new columns and of headers."""

    edits: tuple[Mask | Hash, ...]
    hidden: dict[Path, int]
    dropped: frozenset[Path]
    kept: frozenset[str] | None
    renamed: dict[str, str]
    added: dict[str, str]
    headers: dict[str, str]

    @property
    def changes_rows(self) -> bool:
        return bool(self.hidden or self.dropped or self.renamed or self.added) or self.kept is not None

    def name(self, column: str) -> str | None:
        """What a column is called behind it; None: it is gone."""
        if (column,) in self.dropped or (self.kept is not None and column not in self.kept):
            return None
        return self.renamed.get(column, column)

    def touches(self, columns: Iterable[str]) -> bool:
        """Whether values or names of one of these columns change."""
        hidden = {path[0] for path in self.hidden}
        return any(column in hidden or column in self.renamed for column in columns)

    def shape(self, table: TableSchema) -> TableSchema:
        kept = [replace(self._retyped(c), name=name) for c in table.columns if (name := self.name(c.name)) is not None]
        added = [Column(name, "text", kind=Kind("text")) for name in self.added]
        key = tuple(self.renamed.get(name, name) for name in table.key)
        return replace(table, columns=(*kept, *added), key=key)

    def _retyped(self, column: Column) -> Column:
        edit = self.hidden.get((column.name,))
        kind = column.kind if edit is None else self.edits[edit].kind(column.kind)
        return column if kind == column.kind else replace(column, type=str(kind), kind=kind)


def plan_of(edits: Edits, table: TableSchema, *, mirror: bool = False) -> Plan:
    """Raises `ProcessorError` where what it is told does not fit the table. Of a table whose columns are not known,
    everything is done that concerns it."""
    draft = _Draft(edits, table)
    metadata = list(draft.fitting(edits.add_metadata))
    plan = Plan(
        edits=edits.hiding(),
        hidden=draft.hidden(),
        dropped=draft.dropped(),
        kept=draft.kept(),
        renamed=draft.renamed(),
        added={each.key: each.value for each in metadata if each.as_ == "column"},
        headers={each.key: each.value for each in metadata if each.as_ == "header"},
    )
    _refuse_lost_keys(plan, table, mirror=mirror)
    _refuse_equal_names(plan, table)
    return plan


Entry = TypeVar("Entry", Mask, Hash, Drop, Keep, Rename, FieldMapping, Metadata)


class _Draft:
    """Finds what concerns one version of a table."""

    def __init__(self, edits: Edits, table: TableSchema) -> None:
        self._edits, self._table = edits, table
        self._columns = {column.name for column in table.columns}

    def fitting(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Those that are about the table."""
        return (each for each in entries if self._fits(each.tables))

    def hidden(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for number, each in enumerate(self._edits.hiding()):
            for path in self._paths(each.columns) if self._fits(each.tables) else ():
                self._refuse_overlap(path, found)
                found[path] = number
        return found

    def dropped(self) -> frozenset[Path]:
        paths = {path for each in self.fitting(self._edits.drop) for path in self._paths(each.columns)}
        unmapped = {(each.source_column,) for each in self._mapped() if not each.enabled}
        return frozenset(paths | self._there(unmapped))

    def kept(self) -> frozenset[str] | None:
        keeps = list(self.fitting(self._edits.keep))
        if not keeps:
            return None
        return frozenset({*self._table.key, *(name for each in keeps for name in each.columns)})

    def renamed(self) -> dict[str, str]:
        names = {old: new for each in self.fitting(self._edits.rename) for old, new in each.columns.items()}
        names |= {each.source_column: each.sink_column for each in self._mapped() if each.sink_column is not None}
        return {old: names[old] for (old,) in self._there({(name,) for name in names}) if names[old] != old}

    def _fits(self, tables: tuple[str, ...]) -> bool:
        name = (self._table.database, self._table.schema, self._table.table)
        return not tables or TablePatterns(tables).fit(*name)

    def _mapped(self) -> Iterator[MappedField]:
        return (field for each in self.fitting(self._edits.field_mapping) for field in each.columns)

    def _paths(self, columns: Iterable[str]) -> Iterator[Path]:
        """`a.b` is the column of that name where the table has one, and else a member of the column `a`."""
        for column in columns:
            whole, parts = (column,), tuple(column.split("."))
            if not self._columns:
                yield from dict.fromkeys([whole, parts])
            elif column in self._columns:
                yield whole
            elif parts[0] in self._columns:
                yield parts

    def _there(self, paths: Iterable[Path]) -> set[Path]:
        return {path for path in paths if not self._columns or path[0] in self._columns}

    def _refuse_overlap(self, path: Path, others: Iterable[Path]) -> None:
        for other in others:
            if path[: len(other)] == other or other[: len(path)] == path:
                raise ProcessorError(
                    "processor.hidden_twice",
                    f"`{'.'.join(path)}` of {self._table.name} is masked or hashed twice",
                    hint="leave one of the entries out, or limit them to different `tables`",
                    where=self._table.name,
                )


def _refuse_lost_keys(plan: Plan, table: TableSchema, *, mirror: bool) -> None:
    lost = {path[0] for path in plan.dropped} & {*table.key}
    if lost:
        raise ProcessorError(
            "processor.lost_key",
            f"the column `{min(lost)}` of the key of {table.name} cannot be dropped",
            hint="hash it, or leave the table out by `tables`",
            where=table.name,
        )
    masked = {path[0] for path, edit in plan.hidden.items() if isinstance(plan.edits[edit], Mask)} & {*table.key}
    if masked and mirror:
        raise ProcessorError(
            "processor.masked_key",
            f"`{min(masked)}` is of the key of {table.name}: masked, different rows would become one",
            hint="hash it instead, or leave the table out by `tables`",
            where=table.name,
        )


def _refuse_equal_names(plan: Plan, table: TableSchema) -> None:
    names = [name for column in table.columns if (name := plan.name(column.name)) is not None] + list(plan.added)
    for twice in sorted({name for name in names if names.count(name) > 1}):
        raise ProcessorError(
            "processor.same_name",
            f"two columns of {table.name} would be called `{twice}`",
            hint="choose another name, or drop one of them",
            where=table.name,
        )
