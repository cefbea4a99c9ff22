"""What `tailrace doctor` looks at in a cluster. Nothing is written to find out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.opensearch.cluster import Cluster, connected
from tailrace.sinks.opensearch.indexes import Index, forgetful, found, remedy
from tailrace.sinks.opensearch.marks import Marks

if TYPE_CHECKING:
    from tailrace.sinks.opensearch import OpenSearchSink

_CHECKS = ("marks", "deletes", "durability")


def check_cluster(subject: Subject, sink: OpenSearchSink, delivery: Delivery) -> Iterator[Check]:
    """Whether it answers and lets us in, and whether its indices remember deletes and keep what they acknowledge."""
    try:
        with connected(sink.access(delivery)) as cluster:
            told = _told(cluster)
            progress = Marks(cluster, sink.mark_index, delivery, sink.id).read()
            indices = list(found(cluster, sink.pattern()))
    except TailraceError as error:
        yield subject.failed("cluster", error)
        for name in _CHECKS:
            yield subject.skipped(name, "the cluster does not answer")
        return
    yield subject.ok("cluster", told)
    yield subject.ok("marks", f"delivered up to offset {progress.mark}" if progress.logs else "nothing delivered yet")
    yield _deletes(subject, sink, indices)
    yield _durability(subject, indices)


def _told(cluster: Cluster) -> str:
    version = cluster.ask("GET", "/").body.get("version", {})
    return f"{version.get('distribution', 'elasticsearch')} {version.get('number', 'of unknown version')} answers"


def _deletes(subject: Subject, sink: OpenSearchSink, indices: list[Index]) -> Check:
    wanted = sink.wanted().remembers_s
    short = [index for index in indices if index.remembers_s < wanted]
    if short:
        told = subject.warn if sink.static_index() is None else subject.fail  # a pattern may find others too
        return told("deletes", forgetful(short[0], wanted), remedy(wanted))
    return subject.ok("deletes", f"{len(indices)} indices remember deletes for long enough")


def _durability(subject: Subject, indices: list[Index]) -> Check:
    late = sorted(index.name for index in indices if not index.syncs)
    if late:
        text = f"a crash may lose what the cluster acknowledged in {', '.join(late)}"
        return subject.warn("durability", text, "set `index.translog.durability` to request, if that must not be")
    return subject.ok("durability", "what the cluster acknowledges is on its disk")
