"""The metrics, as the collector of `tailrace.surfaces.metrics` names them, beside what other systems call them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.supervisor.status import Status
from tailrace.surfaces.metrics import LastStatus
from tools.reference.markdown import code, page, table

if TYPE_CHECKING:
    from prometheus_client import Metric

_D, _C, _H = "deltaforge_", "cdc_", "heliosdb_cdc_"
ELSEWHERE = {
    "build_info": [f"{_D}build_info"],
    "pipelines": [f"{_D}pipelines_total"],
    "source_state": [f"{_D}pipeline_status"],
    "source_lag_seconds": [f"{_D}source_lag_seconds"],
    "source_durable_lsn": [f"{_H}wal_sequence"],
    "source_rows_total": [f"{_D}source_events_total", f"{_C}events_produced_total"],
    "source_snapshot_rows_total": [f"{_D}snapshot_rows_total"],
    "source_log_bytes_total": [f"{_D}source_bytes_total"],
    "source_errors_total": [
        f"{_D}source_errors_total",
        f"{_D}source_reconnects_total",
        f"{_C}source_errors_total",
    ],
    "source_schema_versions": [f"{_D}schema_evolutions_total", f"{_D}pipeline_evolutions_total"],
    "sink_state": [f"{_D}pipeline_status"],
    "sink_errors_total": [
        f"{_D}sink_errors_total",
        f"{_D}sink_reconnects_total",
        f"{_D}sink_routing_errors_total",
        f"{_D}coordinator_sink_timeout_total",
        f"{_D}dlq_rejected_total",
        f"{_D}dlq_write_failures_total",
        f"{_D}processor_errors_total",
        f"{_C}sink_errors_total",
        f"{_C}nats_reconnect_total",
    ],
    "sink_rows_total": [
        f"{_D}sink_events_total",
        f"{_C}events_consumed_total",
        f"{_C}flow_events_processed_total",
        f"{_H}events_processed_total",
        f"{_H}events_by_table_total",
    ],
    "sink_bytes_total": [f"{_D}sink_bytes_total", f"{_D}bytes_total", f"{_H}bytes_processed_total"],
    "sink_dropped_changes_total": [
        f"{_D}filter_dropped_total",
        f"{_D}processor_events_out_total",
        f"{_H}events_filtered_total",
    ],
    "sink_skipped_records_total": [f"{_H}events_failed_total"],
    "sink_lag_rows": ["consumer lag of a group"],
    "sink_lag_seconds": [f"{_C}flow_replication_lag_ms", f"{_H}lag_seconds"],
    "sink_table_lag_seconds": [f"{_D}source_table_lag_seconds"],
    "sink_batches_total": [f"{_D}sink_batch_total", f"{_D}checkpoints_total", f"{_D}sink_txn_commits_total"],
    "sink_last_delivery_timestamp_seconds": [f"{_D}sink_last_checkpoint_ts", f"{_D}last_checkpoint_ts"],
    "sink_delay_seconds": [f"{_D}e2e_latency_seconds", f"{_H}event_latency_seconds"],
    "sink_batch_seconds": [
        f"{_D}stage_latency_seconds",
        f"{_D}sink_latency_seconds",
        f"{_C}sink_write_duration_seconds",
        f"{_C}worker_process_duration_seconds",
        f"{_H}sink_latency_seconds",
    ],
    "sink_batch_rows": [f"{_D}batch_events", f"{_C}batch_size", f"{_C}flow_batch_size"],
    "pipeline_committed_offset": [f"{_D}sink_checkpoint_status"],
    "dlq_entries": [f"{_D}dlq_entries"],
    "dlq_saturation_ratio": [f"{_D}dlq_saturation_ratio"],
    "dlq_letters": [f"{_D}dlq_events_total", f"{_C}dlq_events_total"],
    "dlq_evicted_total": [f"{_D}dlq_evicted_total"],
}
"""Our metrics, without `tailrace_`, and what tells most nearly the same in three other systems."""
NOWHERE = (
    (f"{_H}events_by_operation_total", "what a change does is not counted: that would be a look at every change"),
    (f"{_D}batch_bytes", "see `tailrace_sink_bytes_total` and `tailrace_sink_batches_total`"),
    (f"{_D}processor_latency_seconds", "processors run within a batch: see `tailrace_sink_batch_seconds`"),
    (f"{_D}avro_encode_total", "there is no Avro"),
    (f"{_D}schema_sensing_seconds", "schemas come with the changes: nothing is sensed"),
    (f"{_C}active_workers", "a sink has one query: see `tailrace_sink_state`"),
    (f"{_C}event_channel_utilization", "the log is between source and sinks: see `tailrace_sink_lag_bytes`"),
)
"""What they tell and we do not, and why."""


def families() -> Iterator[tuple[str, Metric]]:
    """(name, family). Without a source or a sink there is no sample, but every family with name, help and labels."""
    collector = LastStatus()
    collector.keep(Status(started=0, at=0))
    for metric in collector.collect():
        yield metric.name + "_total" * (metric.type == "counter"), metric


def metrics_page() -> str:
    rows = ((code(name), each.type, _labels(each), _elsewhere(name), each.documentation) for name, each in families())
    intro = (
        "What `GET /metrics` answers while `tailrace run` runs, where the platform document has\n"
        "[ports.metrics](platform.md#metrics). [Watch a pipeline](../guides/watch.md) has alerts and a dashboard.\n"
        "Counters count from the start of the run. What is not known is absent, never zero. A series goes when its\n"
        "source, sink or pipeline goes. Tables beyond `ports.metrics.tables` are told together, as `other`.\n"
        "A histogram has `_bucket`, `_sum` and `_count` behind its name. `elsewhere` tells most nearly the same\n"
        "in DeltaForge, in CDC platforms with `cdc_…`, and in HeliosDB."
    )
    missing = "What these tell and Tailrace does not:\n\n" + table(
        ("elsewhere", "here"), ((code(name), why) for name, why in NOWHERE)
    )
    return page("Metrics", intro, table(("metric", "kind", "labels", "elsewhere", "meaning"), rows), missing)


def _elsewhere(name: str) -> str:
    return ", ".join(code(each) if "_" in each else each for each in ELSEWHERE.get(name.removeprefix("tailrace_"), ()))


def _labels(metric: object) -> str:
    return ", ".join(code(name) for name in getattr(metric, "_labelnames", ()))
