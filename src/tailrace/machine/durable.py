"""Small files and directories that survive a power loss, whole."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.failpoints import failpoint


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, each with a durable name."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def replace_file(path: Path, data: str | bytes) -> None:
    """Put `data` in place of the file: readers, and whoever comes after a crash, find the old or the new, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    failpoint("file.replace.drafted")
    draft.rename(path)
    sync_directory(path.parent)
