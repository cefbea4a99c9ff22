"""Is everything ready for these pipelines? It connects and looks; it changes nothing anywhere.

Every check runs, whatever another one found; one that depends on another is `skipped` and says on which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tailrace.config import Model
from tailrace.errors import SetupError
from tailrace.java import java_home
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.doctor.check import Check, State, Subject
from tailrace.supervisor.doctor.disk import check_directory
from tailrace.supervisor.doctor.postgres import check_postgres
from tailrace.supervisor.doctor.sinks import check_sink
from tailrace.supervisor.layout import Layout

__all__ = ["Check", "State", "diagnose"]

_SOURCES: dict[str, Callable[[Model, Path], Iterator[Check]]] = {"postgres": check_postgres}


def diagnose(pipelines: Sequence[Pipeline], platform: Platform) -> Iterator[Check]:
    """The machine, then each source once, then each sink; as each is found out."""
    yield from _machine(platform)
    layout = Layout(platform.data_dir)
    seen: set[str] = set()
    for pipeline in pipelines:
        kind = pipeline.spec.source.type
        if pipeline.source_id not in seen and kind in _SOURCES:
            yield from _SOURCES[kind](pipeline.source, layout.log(pipeline.source_id))
        seen.add(pipeline.source_id)
    for pipeline in pipelines:
        for sink in pipeline.sinks:
            yield from check_sink(pipeline, sink)


def _machine(platform: Platform) -> Iterator[Check]:
    subject = Subject("machine")
    try:
        yield subject.ok("java", str(java_home()))
    except SetupError as error:
        yield subject.failed("java", error)
    yield from check_directory(subject, platform.data_dir)
