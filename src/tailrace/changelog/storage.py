"""The narrow door to where a log's bytes live. Readers and the writer know only these calls.

Today's home is a local (or mounted) directory. A name is a relative path; `append` and `replace` return only when
the bytes and the name are durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tailrace.errors import LogError
from tailrace.machine.durable import PRIVATE_FILE, make_directory, replace_file, sync_directory
from tailrace.machine.space import FULL


class Directory:
    """A log's files under one directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._open: dict[str, int] = {}

    def list(self, folder: str) -> list[str]:
        """Names in `folder`, sorted; empty where there is none."""
        try:
            entries = sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in entries if not name.startswith(".")]

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def size(self, name: str) -> int:
        return (self.root / name).stat().st_size

    def read(self, name: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """A range of a file, mapped rather than copied where it is large."""
        try:
            size = self.size(name)
            length = size - offset if length is None else length
            if offset + length > size:
                raise _short(self.root / name)
            if length == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(self.root / name)) as mapped:
                mapped.seek(offset)
                return mapped.read_buffer(length)
        except FileNotFoundError as error:
            raise _gone(self.root / name) from error

    def first_line(self, name: str) -> bytes:
        """The first line with its end, or what there is of it; empty for a file that is gone."""
        try:
            with open(self.root / name, "rb") as file:
                return file.readline()
        except FileNotFoundError:
            return b""

    def tail(self, name: str, offset: int) -> bytes:
        """What was appended after `offset`, read by a file handle: a mapping would not see growth."""
        with open(self.root / name, "rb") as file:
            file.seek(offset)
            return file.read()

    def append(self, name: str, *parts: bytes | pa.Buffer) -> None:
        """Add `parts` at the end; not durable before `sync`."""
        view = [memoryview(part) for part in parts]
        with _space_errors(self.root):
            fd = self._handle(name)
            while view:
                written = os.writev(fd, view)
                view = _rest(view, written)

    def sync(self, name: str) -> None:
        """Make everything appended to `name` durable."""
        with _space_errors(self.root):
            os.fdatasync(self._handle(name))

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.root / name, size)

    def replace(self, name: str, data: bytes) -> None:
        """Write a whole small file atomically and durably."""
        path = self.root / name
        with _space_errors(self.root):
            make_directory(path.parent)
            replace_file(path, data)

    def delete(self, name: str) -> None:
        self.finish(name)
        (self.root / name).unlink(missing_ok=True)

    def finish(self, name: str) -> None:
        """Close the append handle of `name`, if there is one."""
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        for name in list(self._open):
            self.finish(name)

    def lock(self, name: str) -> int | None:
        """Take the exclusive lock `name`; None while another process holds it. Closing the fd releases it."""
        make_directory(self.root)
        fd = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _handle(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            path = self.root / name
            make_directory(path.parent)
            fresh = not path.exists()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
            self._open[name] = fd
            if fresh:
                sync_directory(path.parent)
        return fd


def _rest(view: list[memoryview], written: int) -> list[memoryview]:
    while view and written >= len(view[0]):
        written -= len(view.pop(0))
    if view and written:
        view[0] = view[0][written:]
    return view


@contextlib.contextmanager
def _space_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise LogError(
            "log.no_space",
            f"no space left for the change log in {root}",
            hint="free disk space or lower log.retention.max_bytes; capture waits and loses nothing",
        ) from error


def _gone(path: Path) -> LogError:
    return LogError(
        "log.expired",
        f"{path.name} is no longer in the log",
        hint="give the sink another id, then read the tables anew: tailrace snapshot PIPELINE.yaml",
        where=str(path),
    )


def _short(path: Path) -> LogError:
    return LogError(
        "log.corrupt",
        f"{path.name} is shorter than the log's manifest says",
        hint="restore the segment from a backup, or remove the log and start again with a `snapshot` in the source",
        where=str(path),
    )
