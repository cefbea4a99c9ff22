"""What somebody wants to see of a log, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from tailrace.change import OPS
from tailrace.changelog.history import keys_with
from tailrace.config.problems import nearest
from tailrace.errors import ConfigError
from tailrace.processors.conditions import OPERATIONS
from tailrace.processors.outcome import members
from tailrace.processors.tables import TablePattern, TablePatterns
from tailrace.schema import TableSchema
from tailrace.supervisor.explore.grammar import parse
from tailrace.supervisor.explore.where import Where

Order = Literal["newest", "oldest"]
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:+-")
"""Characters that every writer of JSON writes as themselves."""


@dataclass(frozen=True)
class Filter:
    """Changes that fulfil all that is said.

    `tables`: patterns such as `public.orders` or `shop.*.orders_*`. `ops`: letters or words (`u`, `update`). `key`: the
    key as JSON, or the plain value of a key of one column; with `truncates`, a truncate has every key. Times are of
    commits at the source, in microseconds: `[since_us, until_us)`. Offsets are `[start, end)`; positions are the
    source's own, both ends included. `where`: see `explore.grammar`.

    Tables, times, offsets and positions are the source's. All else is asked about what the chain leaves.
    """

    tables: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    key: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    start: int | None = None
    end: int | None = None
    from_position: str | None = None
    to_position: str | None = None
    where: str = ""
    truncates: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @cached_property
    def letters(self) -> frozenset[str]:
        """`ops` as the log has them. Raises `explore.filter`."""
        return frozenset(_letter(each) for each in self.ops)

    @cached_property
    def patterns(self) -> TablePatterns:
        """Raises `explore.filter`."""
        for each in self.tables:
            try:
                TypeAdapter(TablePattern).validate_python(each)
            except ValidationError as error:
                context = error.errors()[0].get("ctx", {})
                _refuse(f"{each!r} is no pattern of tables", str(context.get("hint", "")), "table")
        return TablePatterns(self.tables)

    @cached_property
    def asked(self) -> Where | None:
        """`where`, ready to be asked. Raises `explore.filter`."""
        return Where(parse(self.where)) if self.where.strip() else None

    @cached_property
    def row(self) -> Key | None:
        """Raises `explore.filter`."""
        return None if self.key is None else Key.of(self.key)

    def check(self) -> None:
        """Raise `explore.filter` where something in it cannot be understood."""
        _ = self.letters, self.patterns, self.asked, self.row
        for low, high, name in ((self.start, self.end, "offset"), (self.since_us, self.until_us, "time")):
            if low is not None and high is not None and low > high:
                _refuse(f"the range of {name}s ends before it begins", "exchange the two", name)

    def of_row(self, changes: pa.RecordBatch) -> np.ndarray:
        """Which changes are of the row with the wanted key."""
        assert self.row is not None
        fits = self.row.fits(changes.column("key"))
        return fits | np.asarray(pc.equal(changes.column("op"), pa.scalar("t"))) if self.truncates else fits

    def wants_table(self, table: TableSchema) -> bool:
        return not self.tables or self.patterns.fit(table.database, table.schema, table.table)


@dataclass(frozen=True)
class Key:
    """A row's key: texts by column, as they read. The name `""` stands for the only column there is."""

    values: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str) -> Key:
        """Of JSON, or of a plain value. Raises `explore.filter`."""
        try:
            if not text.lstrip().startswith("{"):
                return cls((("", _read(text.strip())),))
            found = {name: _read(each) for name, each in members(text.strip()).items()} if json.loads(text) else {}
        except (ValueError, IndexError):
            found = {}
        if not found:
            _refuse(f"{text!r} is no key", 'write it like {"id": 7}, or 7 where the key has one column', "key")
        return cls(tuple(found.items()))

    def is_of(self, key: str | None) -> bool:
        """Whether this is what the key of a change says, however it is spelled."""
        if key is None:
            return False
        found = {name: _read(text) for name, text in members(key).items()}
        wanted = dict(self.values)
        return list(found.values()) == [wanted[""]] if "" in wanted else found == wanted

    def texts(self) -> Iterator[str]:
        """What every spelling of it has in it, to pass over keys without it quickly."""
        return (value for _, value in self.values if value and _PLAIN.issuperset(value))

    def fits(self, keys: pa.Array[Any]) -> np.ndarray:
        """Which of these keys it is."""
        found = np.zeros(len(keys), dtype=np.bool_)
        for place in np.flatnonzero(keys_with(keys, self.texts())).tolist():
            found[place] = self.is_of(keys[place].as_py())
        return found


def _read(text: str) -> str:
    """A JSON value as it reads: a text without its quotes, all else as it is."""
    if not text.startswith('"'):
        return text
    found = json.loads(text)
    return str(found)


def _letter(op: str) -> str:
    if op in OPS:
        return op
    if op.lower() in OPERATIONS:
        return OPERATIONS[op.lower()]
    _refuse(f"there is no op {op!r}", nearest(op, OPERATIONS), "op")


def _refuse(message: str, hint: str, where: str) -> NoReturn:
    raise ConfigError("explore.filter", message, hint=hint, where=where)
