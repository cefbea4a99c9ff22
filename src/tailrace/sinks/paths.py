"""A name that the source chose, as the name of one folder or file."""

from __future__ import annotations

import hashlib

LONGEST = 200
"""Characters of a folder's name, which are bytes too; file systems take 255 of them."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def path_segment(*parts: str) -> str:
    """`parts`, joined by dots, as one segment of a path: never empty, `.` or `..`, never hidden from readers of data
    folders, and different for different parts.

    Everything but ASCII letters, digits, `_` and `-` is percent-encoded, dots inside a part too; so is what begins with
    `_` or a dot, or ends with a dot. A name too long for a file system ends in `~` and a hash instead.
    """
    name = ".".join(map(_encoded, parts)) or "%"
    if name[0] in "_.":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if name[-1] == ".":
        name = f"{name[:-1]}%2E"
    if len(name) <= LONGEST:
        return name
    ending = f"~{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    return name[: LONGEST - len(ending)] + ending


def _encoded(part: str) -> str:
    return "".join(char if char in _PLAIN else "".join(f"%{byte:02X}" for byte in char.encode()) for char in part)
