"""How changes go through a pipeline, drawn: source, change log, processors, sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tailrace.surfaces.page.shown import PipelineShown

WIDTH, HEIGHT = 190, 86
GAP_ACROSS, GAP_DOWN, GAP_SINKS = 84, 46, 18
INDENT = 26
"""How far sinks stand from the line that leads down to them."""


@dataclass(frozen=True)
class Part:
    """A box. `lag_rows` changes wait for it, the oldest for `lag_s`; `lag_bytes` at the source."""

    id: str
    kind: Literal["source", "log", "processors", "sink"]
    title: str
    type: str
    state: str = ""
    lag_rows: int | None = None
    lag_s: float | None = None
    end: int | None = None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Box:
    part: Part
    x: float
    y: float


@dataclass(frozen=True)
class Edge:
    """A line; `total` changes have gone along it, which is None where that is not known."""

    id: str
    path: str
    x: float
    y: float
    total: int | None = None
    state: str = ""


@dataclass(frozen=True)
class Flow:
    kind: Literal["across", "down"]
    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def flow(shown: PipelineShown, *, across: bool) -> Flow:
    """From left to right, for wide screens; or from top to bottom."""
    trunk, sinks = _trunk(shown), _sinks(shown)
    return _across(shown, trunk, sinks) if across else _down(shown, trunk, sinks)


def _across(shown: PipelineShown, trunk: Sequence[Part], sinks: Sequence[Part]) -> Flow:
    height = len(sinks) * (HEIGHT + GAP_SINKS) - GAP_SINKS
    middle = max(height, HEIGHT) / 2
    step = WIDTH + GAP_ACROSS
    boxes = [Box(part, n * step, middle - HEIGHT / 2) for n, part in enumerate(trunk)]
    edges = []
    for n in range(len(trunk) - 1):
        start = n * step + WIDTH
        total = _captured(shown) if n == 0 else None
        edges.append(Edge(trunk[n + 1].id, f"M{start} {middle}H{start + GAP_ACROSS}", start + 42, middle - 8, total))
    start, end = (len(trunk) - 1) * step + WIDTH, len(trunk) * step
    for n, sink in enumerate(sinks):
        y = n * (HEIGHT + GAP_SINKS)
        boxes.append(Box(sink, end, y))
        level = y + HEIGHT / 2
        bend = (start + end) / 2 - 14
        path = f"M{start} {middle}C{bend} {middle} {bend} {level} {end} {level}"
        label = level - 8 if level <= middle else level + 18
        edges.append(Edge(sink.id, path, end - 34, label, sink.end, sink.state))
    return Flow("across", end + WIDTH, max(height, HEIGHT), tuple(boxes), tuple(edges))


def _down(shown: PipelineShown, trunk: Sequence[Part], sinks: Sequence[Part]) -> Flow:
    step, middle = HEIGHT + GAP_DOWN, WIDTH / 2
    boxes = [Box(part, 0, n * step) for n, part in enumerate(trunk)]
    edges = []
    for n in range(len(trunk) - 1):
        start = n * step + HEIGHT
        total = _captured(shown) if n == 0 else None
        edges.append(Edge(trunk[n + 1].id, f"M{middle} {start}V{start + GAP_DOWN}", middle + 44, start + 27, total))
    foot = (len(trunk) - 1) * step + HEIGHT
    for n, sink in enumerate(sinks):
        y = foot + GAP_DOWN + n * step
        boxes.append(Box(sink, INDENT * 2, y))
        level = y + HEIGHT / 2
        edges.append(
            Edge(sink.id, f"M{INDENT} {foot}V{level}H{INDENT * 2}", INDENT * 2 + 48, y - 8, sink.end, sink.state)
        )
    return Flow("down", WIDTH + INDENT * 2, foot + len(sinks) * step, tuple(boxes), tuple(edges))


def _trunk(shown: PipelineShown) -> list[Part]:
    spec = shown.info.spec.spec
    source, told = spec.get("source") or {}, shown.ops.source if shown.ops else None
    name, kind = str((source.get("config") or {}).get("id", "source")), str(source.get("type", ""))
    parts = [
        Part("source", "source", name, kind, told.state, lag_s=told.lag_seconds)
        if told
        else Part("source", "source", name, kind),
        Part("log", "log", "change log", "", end=told.log_end if told else None),
    ]
    if steps := _steps(spec):
        parts.append(Part("processors", "processors", "processors", "", steps=tuple(steps)))
    return parts


def _sinks(shown: PipelineShown) -> list[Part]:
    told = {sink.id: sink for sink in shown.ops.sinks} if shown.ops else {}
    return [_sink(each, told) for each in shown.info.spec.spec.get("sinks") or ()]


def _sink(written: Mapping[str, Any], told: Mapping[str, Any]) -> Part:
    config = written.get("config") or {}
    name, kind = str(config.get("id", "sink")), str(written.get("type", ""))
    steps, known = tuple(_steps(config)), told.get(name)
    if known is None:
        return Part(f"sink-{name}", "sink", name, kind, steps=steps)
    state = known.state
    return Part(f"sink-{name}", "sink", name, kind, state, known.lag_rows, known.lag_seconds, known.offset, steps)


def _steps(holder: Mapping[str, Any]) -> Iterator[str]:
    for each in holder.get("processors") or ():
        kind = str(each.get("type", ""))
        yield f"{each['id']} ({kind})" if each.get("id") else kind


def _captured(shown: PipelineShown) -> int | None:
    """Where the log ends: what the source has brought."""
    return shown.ops.source.log_end if shown.ops and shown.ops.source else None
