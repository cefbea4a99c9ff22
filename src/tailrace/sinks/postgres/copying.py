"""Arrow columns as the text format of COPY, without a step of Python per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""The backslash first: the others bring new ones."""


def copy_text(columns: Sequence[pa.Array[Any]]) -> memoryview:
    """The lines of a COPY: one for each row, with a value of each column. Null is `\\N`."""
    texts = [_escaped(each) for each in columns]
    lines: Any = pc.binary_join_element_wise(
        *texts, pa.scalar("\t", pa.large_string()), null_handling="replace", null_replacement="\\N"
    )
    ended: Any = pc.binary_join_element_wise(
        lines, pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
    )
    _, _, data = ended.buffers()
    return memoryview(data) if data is not None else memoryview(b"")


def _escaped(column: pa.Array[Any]) -> Any:
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return column.cast(pa.string()).cast(pa.large_string())
    found: Any = column.cast(pa.large_string())
    for character, escape in _ESCAPES:
        if pc.any(pc.match_substring(found, character)).as_py():
            found = pc.replace_substring(found, character, escape)
    return found
