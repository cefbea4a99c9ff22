"""Slots: in which part of a cluster a key lives, and names for keys that must live beside it."""

from __future__ import annotations

import binascii
from functools import cache

SLOTS = 16384


def slot_of(key: str) -> int:
    """The slot of a key: a hash of its tag, or of all of it."""
    return binascii.crc_hqx((_tag(key) or key).encode(), 0) % SLOTS


def beside(key: str) -> str:
    """A tag for other keys that puts them into the slot of `key`."""
    tag = _tag(key) or key
    return tag if tag and "}" not in tag else tag_of(slot_of(key))


def tag_of(slot: int) -> str:
    """A tag that puts keys into a slot."""
    return _tags()[slot]


def _tag(key: str) -> str:
    """What is between the first `{` and the first `}` behind it; empty where the key has no tag."""
    inside, closed, _ = key.partition("{")[2].partition("}")
    return inside if closed else ""


@cache
def _tags() -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(slot_of(str(number)), str(number))
        number += 1
    return [found[slot] for slot in range(SLOTS)]
