"""Table patterns of processors: `orders`, `public.orders`, `shop.public.orders`, with `*` for any characters."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tailrace.schema import TableSchema

_PART = re.compile(r'"(?:[^"]|"")*"|[^."]+')
_WHOLE = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{0,2}}")


def _checked(pattern: str) -> str:
    if not _WHOLE.fullmatch(pattern):
        hint = "write `table`, `schema.table` or `database.schema.table`; `*` stands for any characters"
        context = {"pattern": pattern, "hint": hint}
        raise PydanticCustomError("config.invalid_value", "'{pattern}' is no pattern of tables", context)
    return pattern


TablePattern = Annotated[str, AfterValidator(_checked)]
"""`table`, `schema.table` or `database.schema.table`. A part with a dot in it stands in double quotes."""

Tables = Annotated[
    tuple[TablePattern, ...],
    Field(description="Only these tables, by patterns such as `public.*`. Absent: all.", examples=[["public.orders"]]),
]


class TablePatterns:
    """Tables that one of these patterns fits."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [([glob(part) for part in _PART.findall(each)], glob(each)) for each in patterns]

    def fit(self, database: str, schema: str, table: str) -> bool:
        """A logical message is a table without a schema: its prefix may have dots."""
        name = (database, schema, table)
        return any(
            all(part.match(own) for part, own in zip(reversed(parts), reversed(name), strict=False))
            or (not schema and whole.match(table) is not None)
            for parts, whole in self._patterns
        )


def by_table(changes: pa.RecordBatch, decide: Callable[[str, str, str], Any]) -> Any:
    """What `decide` says of each change's database, schema and table. It is asked once for each table."""
    encoded = [changes.column(name).dictionary_encode() for name in ("database", "schema", "table")]
    names: list[list[Any]] = [each.dictionary.to_pylist() for each in encoded]
    sizes = [max(len(each), 1) for each in names]
    places = np.ravel_multi_index([np.asarray(each.indices) for each in encoded], sizes)
    answers = np.zeros(int(np.prod(sizes)), dtype=np.int64)
    for place in np.flatnonzero(np.bincount(places, minlength=len(answers))):
        which = np.unravel_index(int(place), sizes)
        answers[place] = decide(*(each[n] for each, n in zip(names, which, strict=True)))
    return answers[places]


def versions(changes: pa.RecordBatch, tables: Mapping[int, TableSchema]) -> tuple[list[TableSchema], Any]:
    """The versions of tables that these changes have, and which of them each change has. One that nobody knows is a
    version without columns."""
    numbers, first, which = np.unique(np.asarray(changes.column("schema_id")), return_index=True, return_inverse=True)
    found = [tables.get(number) or _unknown(changes, row) for number, row in zip(numbers.tolist(), first, strict=True)]
    return found, which


def _unknown(changes: pa.RecordBatch, row: int) -> TableSchema:
    names = ("schema_id", "database", "schema", "table")
    number, database, schema, table = (changes.column(name)[row].as_py() for name in names)
    return TableSchema(number, database, schema, table, (), ())


@lru_cache
def glob(text: str) -> re.Pattern[str]:
    """`*` stands for any characters; what stands in double quotes is one part with all it has."""
    plain = text[1:-1].replace('""', '"') if text.startswith('"') else text
    return re.compile(fnmatch.translate(plain.replace("[", "[[]").replace("?", "[?]")))
