"""Table patterns: `schema.table`, `schema.*`, `*.orders`, `*`; a name without a dot is a table of any schema."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable


class TablePatterns:
    """Which tables a source captures."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = {pattern: _compile(pattern) for pattern in patterns}

    def match(self, schema: str, table: str) -> bool:
        return any(_fits(pair, schema, table) for pair in self._patterns.values())

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Patterns none of `tables` fits."""
        known = list(tables)
        return [text for text, pair in self._patterns.items() if not any(_fits(pair, *table) for table in known)]


def _compile(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    schema, dot, table = pattern.partition(".")
    if not dot:
        schema, table = "*", pattern
    return glob(schema), glob(table)


def glob(text: str) -> re.Pattern[str]:
    """`*` stands for any characters; everything else for itself."""
    return re.compile(fnmatch.translate(text.replace("[", "[[]").replace("?", "[?]")))


def _fits(pair: tuple[re.Pattern[str], re.Pattern[str]], schema: str, table: str) -> bool:
    return bool(pair[0].match(schema) and pair[1].match(table))
