"""Small files and directories that survive a power loss, whole; for this user alone unless something else is asked for:
what Tailrace keeps is rows of a database, or tells of them."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.failpoints import failpoint

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
USERS_DIRECTORY, USERS_FILE = 0o777, 0o666
"""For what is a user's own: as the umask has it."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path, mode: int = PRIVATE_DIRECTORY) -> None:
    """Make a directory and those above it, each with a durable name."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    path.mkdir(mode, exist_ok=True)
    sync_directory(path.parent)


def private(path: str, flags: int) -> int:
    """The `opener` of an `open`: a file that it makes is this user's alone."""
    return os.open(path, flags, PRIVATE_FILE)


def replace_file(path: Path, data: str | bytes, mode: int = PRIVATE_FILE) -> None:
    """Put `data` in place of the file: readers, and whoever comes after a crash, find the old or the new, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    failpoint("file.replace.drafted")
    draft.rename(path)
    sync_directory(path.parent)
