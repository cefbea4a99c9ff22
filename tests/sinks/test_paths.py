"""Names of the source as names of folders."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest

from tailrace.sinks.paths import LONGEST, path_segment

PIECES = (
    "",
    ".",
    "..",
    "/",
    "\\",
    "%",
    "%2e",
    "%2F",
    "~",
    "_",
    " ",
    "a",
    "A",
    "é",
    "\U0001f600",
    ":",
    "*?[{",
    "\n",
    "\x01",
)
HOSTILE = sorted({"".join(each) for each in product(PIECES, repeat=3)} | {"x" * LONGEST, "x" * 300, "☃" * 63})


def test_a_name_is_one_folder_inside_its_parent() -> None:
    for name in HOSTILE:
        segment = path_segment(*name.split("."))
        assert Path("/lake", segment).resolve().parent == Path("/lake")
        assert segment.isascii() and not segment.startswith((".", "_")) and not segment.endswith((".", " "))
        assert not set(segment) & set("/\\:*?[]{}#'\"` \n\x01")
        assert len(segment) <= LONGEST


def test_different_names_are_different_folders() -> None:
    """Also a name that is what another became."""
    names = {*HOSTILE, *(path_segment(*name.split(".")) for name in HOSTILE)}
    assert len({path_segment(*name.split(".")) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["public__orders", "public.orders", "a/b", "größe", "..", "a..b", ".x", "_x"])
def test_a_name_can_be_read_from_its_folder(name: str) -> None:
    assert unquote(path_segment(*name.split("."))) == name


def test_usual_names_stay_as_they_are() -> None:
    assert [path_segment(*name.split(".")) for name in ("public__orders", "Shop.a-b_2")] == [
        "public__orders",
        "Shop.a-b_2",
    ]
