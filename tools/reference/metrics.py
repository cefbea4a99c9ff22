"""The metrics, as the collector of `tailrace.surfaces.metrics` names them."""

from __future__ import annotations

from tailrace.supervisor.status import Status
from tailrace.surfaces.metrics import LastStatus
from tools.reference.markdown import code, page, table


def metrics_page() -> str:
    """Without a source or a sink there is no sample, but every family with its name, help and labels."""
    collector = LastStatus()
    collector.keep(Status(started=0, at=0))
    rows = (
        (code(metric.name + "_total" * (metric.type == "counter")), metric.type, _labels(metric), metric.documentation)
        for metric in collector.collect()
    )
    intro = (
        "What `GET /metrics` answers while `tailrace run` runs, where the platform document has\n"
        "[ports.metrics](platform.md#metrics). [Watch a pipeline](../guides/watch.md) has alerts. Counters\n"
        "count from the start of the run. What is not known is absent, never zero."
    )
    return page("Metrics", intro, table(("metric", "kind", "labels", "meaning"), rows))


def _labels(metric: object) -> str:
    return ", ".join(code(name) for name in getattr(metric, "_labelnames", ()))
