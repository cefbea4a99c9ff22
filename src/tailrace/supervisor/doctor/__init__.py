"""Is everything ready for these pipelines? It connects and looks; it changes nothing anywhere.

Every check runs, whatever another one found; one that depends on another is `skipped` and says on which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.capture.postgres import PostgresSource
from tailrace.contracts import Check, Delivery, Subject
from tailrace.contracts.checking import State, check_directory
from tailrace.errors import SetupError
from tailrace.machine.java import java_home
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.doctor.postgres import check_postgres
from tailrace.supervisor.layout import Layout

__all__ = ["Check", "State", "diagnose"]


def diagnose(pipelines: Sequence[Pipeline], platform: Platform) -> Iterator[Check]:
    """The machine, then each source once, then each sink; as each is found out."""
    yield from _machine(platform)
    for source in {one.source_id: one.source for one in pipelines}.values():
        if isinstance(source, PostgresSource):
            yield from check_postgres(source, Layout.of(platform))
    for pipeline in pipelines:
        for sink in pipeline.sinks:
            delivery = Delivery(pipeline.name, pipeline.metadata.tenant, pipeline.source_id)
            yield from sink.check(Subject(f"sink {pipeline.name}/{sink.id}"), delivery)


def _machine(platform: Platform) -> Iterator[Check]:
    subject = Subject("machine")
    try:
        yield subject.ok("java", str(java_home()))
    except SetupError as error:
        yield subject.failed("java", error)
    yield from check_directory(subject, platform.data_dir)
