"""What transactions left of rows, as far as the log knows."""

from __future__ import annotations

import pytest

from tailrace.change import OPS
from tailrace.changelog.touched import Touched

UNSENT = '["body"]'


def touched(*changes: tuple[str, str | None]) -> Touched:
    """Changes of one key: the op, and which columns it leaves out."""
    found = Touched()
    for op, unchanged in changes:
        found.add(OPS.index(op), None if op == "t" else "1", None, unchanged)
    return found


@pytest.mark.parametrize(
    ("changes", "owed", "partial"),
    [
        ([("u", UNSENT)], True, True),
        ([("u", None), ("u", UNSENT)], False, True),
        ([("u", None), ("u", UNSENT), ("u", UNSENT)], False, True),
        ([("u", UNSENT), ("u", UNSENT)], True, True),
        ([("u", UNSENT), ("u", None)], False, False),
        ([("u", UNSENT), ("d", None)], False, False),
        ([("u", None), ("d", None), ("c", UNSENT)], True, True),  # another row got the key
        ([("u", UNSENT), ("t", None)], False, False),
        ([("u", None), ("t", None), ("c", UNSENT)], True, True),
        ([("t", None), ("c", None), ("u", UNSENT)], False, True),
    ],
)
def test_a_row_is_owed_where_no_change_has_its_columns(
    changes: list[tuple[str, str | None]], owed: bool, partial: bool
) -> None:
    found = touched(*changes)
    assert (found.owed == {"1"}, found.partial == {"1"}) == (owed, partial)
    assert found.keys == {"1"}
