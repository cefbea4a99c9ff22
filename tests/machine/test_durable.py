"""Files and directories: whose they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.machine.durable import USERS_DIRECTORY, USERS_FILE, make_directory, private, replace_file


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual one: everybody may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_this_users_alone(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    replace_file(tmp_path / "a" / "b" / "c", "x")
    open(tmp_path / "a" / "d", "ab", opener=private).close()
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c", "a/d")] == [0o700, 0o700, 0o600, 0o600]
    replace_file(tmp_path / "a" / "b" / "c", "y")
    assert (mode(tmp_path / "a" / "b" / "c"), (tmp_path / "a" / "b" / "c").read_text()) == (0o600, "y")


def test_what_is_made_for_a_user_is_as_the_umask_has_it(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b", USERS_DIRECTORY)
    replace_file(tmp_path / "a" / "b" / "c", "x", USERS_FILE)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o755, 0o755, 0o644]
