"""The indices that documents go to: what they may be called, how they are made, and what those that exist must have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.errors import SinkError
from tailrace.sinks.opensearch.cluster import Cluster, path_of

_NOT_IN_NAMES = re.compile(r'[\\/*?"<>| ,#:\x00-\x1f]')
_LONGEST_NAME = 255
_GC = "index.gc_deletes"
_SYNC = "index.translog.durability"
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "micros": 1e-6, "nanos": 1e-9}
_TIME = re.compile(r"(-?\d+(?:\.\d+)?)\s*(d|h|m|s|ms|micros|nanos)?", re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """What indices must have. `remembers_s`: seconds for which they know versions of deleted documents."""

    remembers_s: float
    settings: Mapping[str, Any]
    mapping: Mapping[str, Any]


@dataclass(frozen=True)
class Index:
    """One that is there."""

    name: str
    remembers_s: float
    syncs: bool


def problem_of_index(name: str) -> str | None:
    """Why an index cannot have this name, or None."""
    if not name or name in (".", "..") or name.startswith(("-", "_", "+")):
        return "it is empty, or begins with one of - _ +"
    if name != name.lower():
        return "it has capital letters"
    if _NOT_IN_NAMES.search(name):
        return 'it has one of \\ / * ? " < > | , # : or a blank'
    return f"it has more than {_LONGEST_NAME} bytes" if len(name.encode()) > _LONGEST_NAME else None


def see_to(cluster: Cluster, index: str, wanted: Wanted, where: str) -> None:
    """Once per process: make the index where there is none, else look whether it fits."""
    if index in cluster.known:
        return
    there = list(found(cluster, index))
    if not there:
        _make(cluster, index, wanted)
    elif wanted.mapping:
        cluster.ask("PUT", path_of(index, "_mapping"), wanted.mapping)
    for each in there:
        if each.remembers_s < wanted.remembers_s:
            raise _forgetful(each, wanted, where)
    cluster.known.add(index)


def found(cluster: Cluster, pattern: str) -> Iterator[Index]:
    """The indices of a name, an alias or a pattern."""
    path = path_of(pattern, "_settings", f"{_GC},{_SYNC}") + "?flat_settings=true&include_defaults=true"
    reply = cluster.ask("GET", path, also=(404,))
    for name, told in reply.body.items() if reply.found else ():
        settings = {**told.get("defaults", {}), **told.get("settings", {})}
        syncs = str(settings.get(_SYNC, "request")).lower() == "request"
        yield Index(name, seconds(settings.get(_GC, "60s")), syncs)


def seconds(text: str) -> float:
    """A time as the server spells it."""
    spelled = _TIME.fullmatch(text.strip())
    return float(spelled[1]) * _UNITS[(spelled[2] or "ms").lower()] if spelled else 0.0


def forgetful(index: Index, wanted_s: float) -> str:
    """For people: an index that forgets deletes too early."""
    return f"the index {index.name} forgets deletes after {index.remembers_s:g} s, the sink needs {wanted_s:g} s"


def remedy(wanted_s: float) -> str:
    return (
        f'PUT INDEX/_settings {{"{_GC}": "{wanted_s:g}s"}}, lower `gc_deletes` of the sink, or set `soft_delete: true`'
    )


def _make(cluster: Cluster, index: str, wanted: Wanted) -> None:
    settings: dict[str, Any] = dict(wanted.settings)
    if wanted.remembers_s:
        settings[_GC] = f"{int(wanted.remembers_s * 1000)}ms"
    body = {"settings": settings, **({"mappings": dict(wanted.mapping)} if wanted.mapping else {})}
    cluster.make(index, body)


def _forgetful(index: Index, wanted: Wanted, where: str) -> SinkError:
    text = forgetful(index, wanted.remembers_s)
    return SinkError("sink.refused", text, hint=remedy(wanted.remembers_s), where=where)
