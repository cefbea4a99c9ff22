"""Keys of the pipeline document that are planned: refused as `config.not_yet`, neither ignored nor unknown.

A key may list values that say what already happens today; those are accepted. Whoever builds a feature gives
its model the field and takes the line out here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tailrace.config.document import Document, Path, problem_at
from tailrace.config.model import Model
from tailrace.config.problems import Problem
from tailrace.config.shape import keys_at

Today = Mapping[str, tuple[object, ...]]
"""Key → the values accepted now."""

SPEC: Today = {
    "connection_policy": (),
    "schema_sensing": (),
}
BATCH: Today = {"max_inflight": (1,)}
SOURCE: Mapping[str, Today] = {
    "postgres": {
        "start_position": (),
    }
}
_RECORD_SINK: Today = {"encoding": ("json", {"type": "json"})}
SINK: Mapping[str, Today] = {
    "console": _RECORD_SINK,
    "elasticsearch": _RECORD_SINK,
    "file": _RECORD_SINK,
    "http": _RECORD_SINK,
    "kafka": _RECORD_SINK,
    "kinesis": _RECORD_SINK,
    "nats": _RECORD_SINK,
    "opensearch": _RECORD_SINK,
    "postgres": _RECORD_SINK,
    "redis": _RECORD_SINK,
    "s3": _RECORD_SINK,
    "webhook": _RECORD_SINK,
}


def set_aside(document: Document, model: type[Model]) -> tuple[Document, list[Problem]]:
    """The document without its planned keys, and a problem for each whose value would change something."""
    data = deepcopy(document.data)
    problems: list[Problem] = []
    for path, holder, today in _places(data):
        known = keys_at(model, path, data)
        for key in sorted(today.keys() & holder.keys()):
            accepted = any(type(holder[key]) is type(value) and holder[key] == value for value in today[key])
            if not accepted:
                problems.append(_not_yet(document, (*path, key), today[key]))
            if not accepted or key not in known:
                del holder[key]
    return document.with_data(data), problems


def _places(data: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any], Today]]:
    """The mappings of a pipeline document that can have planned keys."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return
    yield ("spec",), spec, SPEC
    if isinstance(spec.get("batch"), dict):
        yield ("spec", "batch"), spec["batch"], BATCH
    sinks = spec.get("sinks")
    entries: list[tuple[Path, Any, Mapping[str, Today]]] = [(("spec", "source"), spec.get("source"), SOURCE)]
    for place, sink in enumerate(sinks if isinstance(sinks, list) else []):
        entries.append((("spec", "sinks", place), sink, SINK))
    for path, entry, shelf in entries:
        if isinstance(entry, dict) and isinstance(entry.get("config"), dict):
            yield (*path, "config"), entry["config"], shelf.get(str(entry.get("type")), {})


def _not_yet(document: Document, path: Path, today: tuple[object, ...]) -> Problem:
    accepted = " or ".join(f"`{json.dumps(value)}`" for value in today)
    hint = f"leave it out, or use {accepted}" if today else "leave it out"
    return problem_at(document, path, "config.not_yet", "planned, and not there yet", hint)
