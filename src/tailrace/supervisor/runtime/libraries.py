"""Which runtime carries a pipeline: those that need the same libraries share one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tailrace.contracts import Sink
from tailrace.registry import SINKS
from tailrace.spec import Pipeline

PLAIN = "plain"
LAKE = "lake"


def runtime_of(pipeline: Pipeline) -> tuple[str, tuple[Sink, ...]]:
    """The runtime's name, and the sinks whose libraries its Spark must have: none, those of Delta and Iceberg, or, for
    sinks that need more than these, their own."""
    lake = _lake()
    jars = {jar for sink in pipeline.sinks for jar in sink.jars()}
    if not jars:
        return PLAIN, ()
    if jars <= {jar for sink in lake for jar in sink.jars()}:
        return LAKE, lake
    named = hashlib.sha256("\n".join(sorted(map(str, jars))).encode()).hexdigest()[:8]
    return f"{LAKE}-{named}", tuple(sink for sink in pipeline.sinks if sink.jars())


def _lake() -> tuple[Sink, ...]:
    """Sinks of both formats, for what they need; they deliver nothing."""
    documents: Iterable[tuple[str, dict[str, str]]] = (
        ("delta", {"id": "delta", "path": "/unused"}),
        ("iceberg", {"id": "iceberg", "warehouse": "/unused"}),
    )
    sinks = tuple(SINKS.load(kind).model_validate(fields) for kind, fields in documents)
    assert all(isinstance(sink, Sink) for sink in sinks)
    return sinks  # type: ignore[return-value]
