"""Columns that the source did not send, because they did not change: taken from the documents that are there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.json_members import split
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.documents import Action, Place, place_of

_AT_ONCE = 50

Images = dict[Place, tuple[int, str]]
"""What documents hold, and their versions."""


@dataclass(frozen=True)
class Half:
    """An action whose document lacks columns, and nobody has them."""

    action: Action
    piece: pa.RecordBatch

    @property
    def error(self) -> SinkError:
        names = ", ".join(f"`{name}`" for name in self.action.missing)
        text = f"the source did not send {names}, which did not change, and the index does not have it"
        hint = "read the table anew (`tailrace snapshot --table …`); REPLICA IDENTITY FULL sends all columns always"
        return SinkError("sink.rejected", text, hint=hint, where=place_of(self.piece, self.action.row))


def completed(cluster: Cluster, actions: Sequence[Action], piece: pa.RecordBatch) -> tuple[list[Action], list[Half]]:
    """The actions with whole documents, and those for which there is no whole one. An action that comes later sees
    what one before it wrote."""
    partial = [action for action in actions if action.missing]
    if not partial:
        return list(actions), []
    images = dict(_stored(cluster, {place for each in partial for place in (each.place, each.was) if place}))
    whole: list[Action] = []
    halves: list[Half] = []
    for action in actions:
        done = _completed(action, images) if action.missing else action
        if done is None:
            halves.append(Half(action, piece))
            continue
        if done.body is not None:
            images[done.place] = done.version, done.body
        elif not done.moves:  # its other half may need what it has
            images.pop(done.place, None)
        whole.append(done)
    return whole, halves


def _completed(action: Action, images: Images) -> Action | None:
    """With the columns of the document that the row had. One that is newer than the move is another row's."""
    for place in (action.was, action.place):
        version, image = images.get(place, (0, "{}")) if place else (0, "{}")
        if place == action.was and version > action.version:
            continue
        kept = split(image)
        if kept.keys() >= set(action.missing):
            return action.with_body(_joined(action.body or "{}", {name: kept[name] for name in action.missing}))
    return None


def _joined(body: str, more: dict[str, str]) -> str:
    inside = body.strip()[1:-1].strip()
    members = [f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in more.items()]
    return "{" + ", ".join([*([inside] if inside else []), *members]) + "}"


def _stored(cluster: Cluster, places: Iterable[Place]) -> Iterator[tuple[Place, tuple[int, str]]]:
    """What the documents hold, as texts: every number keeps its spelling."""
    wanted = sorted(places)
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        asked = {"docs": [{"_index": index, "_id": name} for index, name in some]}
        told = split(cluster.ask("POST", "/_mget", asked).text)["docs"]
        for place, text in zip(some, _elements(told), strict=True):
            found = split(text)
            if "_source" in found:
                yield place, (int(found["_version"]), found["_source"])


def _elements(array: str) -> Iterator[str]:
    """The elements of a JSON array as texts."""
    decoder, at = json.JSONDecoder(), array.index("[") + 1
    while True:
        while array[at] in " \t\r\n,":
            at += 1
        if array[at] == "]":
            return
        _, end = decoder.raw_decode(array, at)
        yield array[at:end]
        at = end
