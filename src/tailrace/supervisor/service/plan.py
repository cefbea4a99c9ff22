"""What applying a document would change, field by field, and what each change costs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Effect = Literal["live", "restart", "re-read", "new"]
"""`live`: nothing is interrupted. `restart`: the pipeline's sinks finish their batches and begin anew where they were.
`re-read`: what is there already at the source, or at a sink, is not as if it had been so from the start; see the step's
`note`. `new`: there was none."""

_LIVE = (("apiVersion",), ("kind",), ("metadata", "labels"), ("metadata", "annotations"))
_AGAIN = (
    (("spec", "source", "config", "tables"), "tables that join are read if the source has a `snapshot`"),
    (("spec", "source", "config", "id"), "another id is another change log: sinks begin anew"),
    (("spec", "source", "config", "dsn"), "another server must have the log's position, or the source needs a repair"),
    (("spec", "processors"), "rows delivered before stay as they are: read tables anew for them"),
)


@dataclass(frozen=True)
class Step:
    """A field that changes. Values are as they may be shown; None: absent."""

    path: str
    before: Any
    after: Any
    effect: Effect
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """`hash` names this plan and the version it starts from: whoever applies it by its hash gets just that."""

    pipeline: str
    version: int
    """Of the document that is there; 0: none."""
    steps: tuple[Step, ...]
    hash: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(name: str, version: int, before: Mapping[str, Any] | None, after: Mapping[str, Any], digest: str) -> Plan:
    """From the document as it is shown now to that it is to be. `digest`: of what it is to be, secrets included."""
    steps = (Step("", None, dict(after), "new"),) if before is None else tuple(_steps(before, after, ()))
    told = json.dumps([name, version, digest], sort_keys=True)
    return Plan(name, version, steps, hashlib.sha256(told.encode()).hexdigest())


def without_live(content: Mapping[str, Any]) -> dict[str, Any]:
    """A document without what interrupts nothing when it changes."""
    found = {key: value for key, value in content.items() if (key,) not in _LIVE}
    metadata = found.get("metadata")
    if isinstance(metadata, Mapping):
        found["metadata"] = {key: value for key, value in metadata.items() if ("metadata", key) not in _LIVE}
    return found


def _steps(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[Step]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _steps(before.get(key), after.get(key), (*path, key))
    elif _by_id(before) is not None and _by_id(after) is not None:
        yield from _steps(_by_id(before), _by_id(after), path)
    else:
        effect, note = _effect(path)
        yield Step(".".join(path), before, after, effect, note)


def _effect(path: tuple[str, ...]) -> tuple[Effect, str]:
    if any(path[: len(each)] == each for each in _LIVE):
        return "live", ""
    for each, note in _AGAIN:
        if path[: len(each)] == each:
            return "re-read", note
    if path[:2] == ("spec", "sinks") and path[3:5] == ("config", "processors"):
        return "re-read", _AGAIN[-1][1]
    return "restart", ""


def _by_id(value: Any) -> dict[str, Any] | None:
    """A list of things with ids, by these; None for anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        return None
    ids = [str(each.get("id") or (each.get("config") or {}).get("id") or "") for each in value]
    return dict(zip(ids, value, strict=True)) if len(set(ids)) == len(ids) and all(ids) else None
