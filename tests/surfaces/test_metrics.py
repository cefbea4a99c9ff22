"""Metrics: the status as it is told to Prometheus. A whole run is scraped in `test_one_run`."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from tailrace import __version__
from tailrace.errors import SetupError
from tailrace.histogram import ROWS, SECONDS, Histogram
from tailrace.spec.platform import Metrics
from tailrace.supervisor.status import (
    DebtStatus,
    DropStatus,
    LetterGroup,
    LetterStatus,
    PipelineStatus,
    SinkStatus,
    SkipStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TapStatus,
)
from tailrace.surfaces.metrics import LastStatus, served
from tailrace.testing.servers.process import free_port
from tests.scraping import ask, figures

TAP = TapStatus(
    "db",
    "blocked",
    rows=12,
    transactions=3,
    restarts=2,
    last_commit_us=1_500_000,
    lag_bytes=4096,
    lag_s=0.5,
    held_bytes=8192,
    safe_wal_size=1 << 40,
    time_to_loss_s=3600.0,
    head=17,
    age_s=0.25,
    warnings=("slow",),
    log_bytes=1200,
    snapshot_rows=34,
    received_lsn=300,
    durable_lsn=200,
    schemas={"public.a": 2},
    errors={"source.disconnected": 4},
)
SINK = SinkStatus("shop", "files", "file", "db", "running", 10, 7, 1.5, 4, 1, {"public.a": TableStatus(9, 90, 0)})
SKIPPED = (SkipStatus("public.a", "sink.rejected", 2),)
DROPPED = (DropStatus("public.a", "mine", "fields", 3),)
STATUS = Status(
    1.0,
    2.0,
    (TAP, TapStatus("other")),
    (
        replace(
            SINK,
            dropped=DROPPED,
            skipped=SKIPPED,
            lag_bytes=700,
            lag_tables_s={"public.a": 1.5},
            errors={"sink.unavailable": 6},
            debt={"public.a": DebtStatus(9, 8, 7, 6)},
            delay_s=Histogram.empty(SECONDS).seen(0.01, 0.2),
            batch_s=Histogram.empty(SECONDS).seen(0.3),
            batch_rows=Histogram.empty(ROWS).seen(9),
            last_delivery=123.0,
        ),
        SinkStatus("shop", "lake", "delta", "db", tables={"public.a": TableStatus(9, None, None)}),
    ),
    (
        SnapshotStatus("db", "r1", "public.a", "reading", 5, 50),
        SnapshotStatus("db", "r1", "public.b", "done", 5, None),
        SnapshotStatus("db", "r0", "public.c", "failed", 0, None, {"code": "source.privilege", "message": "no"}),
    ),
    pipelines=(PipelineStatus("shop", "all", 10),),
    letters=(LetterStatus("shop", 5, 2, 20, 7, 3, (), (LetterGroup("files", "sink.rejected", 5),)),),
)


def test_every_figure_of_the_status_is_told() -> None:
    port = free_port()
    with served(Metrics(port=port)) as keep:
        assert figures(ask(port)[1]) == {}
        keep(STATUS)
        found = figures(ask(port)[1])
    expected = {
        ("status_timestamp_seconds",): 2.0,
        ("source_state", "db", "blocked"): 1,
        ("source_state", "db", "running"): 0,
        ("source_state", "db", "silent"): 0,
        ("source_status_age_seconds", "db"): 0.25,
        ("sink_dropped_changes_total", "shop", "mine", "fields", "files", "db", "public.a"): 3,
        ("sink_skipped_records_total", "sink.rejected", "shop", "files", "db", "public.a"): 2,
        ("dlq_entries", "shop"): 5,
        ("dlq_held_entries", "shop"): 2,
        ("dlq_saturation_ratio", "shop"): 0.25,
        ("dlq_evicted_total", "shop"): 7,
        ("dlq_expired_total", "shop"): 3,
        ("dlq_letters", "sink.rejected", "shop", "files"): 5,
        ("build_info", __version__): 1,
        ("start_timestamp_seconds",): 1.0,
        ("pipelines",): 1,
        ("source_log_bytes_total", "db"): 1200,
        ("source_snapshot_rows_total", "db"): 34,
        ("source_received_lsn", "db"): 300,
        ("source_durable_lsn", "db"): 200,
        ("source_errors_total", "source.disconnected", "db"): 4,
        ("source_schema_versions", "db", "public.a"): 2,
        ("sink_errors_total", "sink.unavailable", "shop", "files", "db"): 6,
        ("sink_lag_bytes", "shop", "files", "db"): 700,
        ("sink_table_lag_seconds", "shop", "files", "db", "public.a"): 1.5,
        ("sink_debt", "small_files", "shop", "files", "db", "public.a"): 8,
        ("sink_last_delivery_timestamp_seconds", "shop", "files", "db"): 123.0,
        ("sink_delay_seconds_bucket", "0.05", "shop", "files", "db"): 1,
        ("sink_delay_seconds_bucket", "+Inf", "shop", "files", "db"): 2,
        ("sink_delay_seconds_sum", "shop", "files", "db"): pytest.approx(0.21),
        ("sink_batch_seconds_count", "shop", "files", "db"): 1,
        ("sink_batch_rows_bucket", "10.0", "shop", "files", "db"): 1,
        ("pipeline_committed_offset", "shop"): 10,
        ("source_lag_bytes", "db"): 4096,
        ("source_lag_seconds", "db"): 0.5,
        ("source_retained_wal_bytes", "db"): 8192,
        ("source_safe_wal_bytes", "db"): 1 << 40,
        ("source_time_to_loss_seconds", "db"): 3600,
        ("source_log_end_offset", "db"): 17,
        ("source_last_commit_timestamp_seconds", "db"): 1.5,
        ("source_warnings", "db"): 1,
        ("source_rows_total", "db"): 12,
        ("source_transactions_total", "db"): 3,
        ("source_restarts_total", "db"): 2,
        ("sink_state", "shop", "files", "db", "running"): 1,
        ("sink_offset", "shop", "files", "db"): 10,
        ("sink_lag_rows", "shop", "files", "db"): 7,
        ("sink_lag_seconds", "shop", "files", "db"): 1.5,
        ("sink_batches_total", "shop", "files", "db"): 4,
        ("sink_bound_limited_batches_total", "shop", "files", "db"): 1,
        ("sink_rows_total", "shop", "files", "db", "public.a"): 9,
        ("sink_bytes_total", "shop", "files", "db", "public.a"): 90,
        ("snapshot_rows", "r1", "db", "public.a"): 5,
        ("snapshot_failed", "r1", "db", "public.a"): 0,
        ("snapshot_failed", "r0", "db", "public.c"): 1,
        ("snapshot_estimated_rows", "r1", "db", "public.a"): 50,
    }
    assert {name: found[name] for name in expected} == expected
    of_tap = ("status_age_seconds", "lag_bytes", "retained_wal_bytes", "log_end_offset", "time_to_loss_seconds")
    unknown: set[tuple[str, ...]] = {(f"source_{name}", "other") for name in of_tap}
    of_sink = ("offset", "lag_rows", "lag_bytes", "lag_seconds", "last_delivery_timestamp_seconds")
    unknown |= {(f"sink_{name}", "shop", "lake", "db") for name in of_sink}
    unknown |= {
        ("sink_bytes_total", "shop", "lake", "db", "public.a"),
        ("sink_table_lag_seconds", "shop", "lake", "db", "public.a"),
        ("snapshot_estimated_rows", "r1", "db", "public.b"),
    }
    assert found["sink_rows_total", "shop", "lake", "db", "public.a"] == 9
    assert not unknown & set(found), "what is not known is not told as zero"


def test_a_series_goes_when_its_object_goes() -> None:
    """No series of the sink, the source, the pipeline or the snapshot is left once the status has them no longer."""
    told = LastStatus()
    told.keep(STATUS)
    assert {"files", "lake", "db", "other", "r1", "shop"} <= labels(told)
    told.keep(Status(1.0, 3.0, (TAP,), STATUS.sinks[1:]))
    assert not {"files", "other", "r1", "sink.rejected"} & labels(told)
    told.keep(Status(1.0, 4.0))
    assert labels(told) == {__version__}


def labels(told: LastStatus) -> set[str]:
    return {value for family in told.collect() for sample in family.samples for value in sample.labels.values()}


def test_tables_beyond_the_bound_are_told_together_and_no_counter_falls() -> None:
    told = LastStatus(tables=2)

    def rows(**by_table: int) -> dict[str, float]:
        tables = {name: TableStatus(count, count * 10, count * 1_000_000) for name, count in by_table.items()}
        lags = {name: float(count) for name, count in by_table.items()}
        told.keep(Status(1.0, 2.0, (), (replace(SINK, tables=tables, lag_tables_s=lags),)))
        found = [sample for family in told.collect() for sample in family.samples]
        lagging = {each.labels["table"]: each.value for each in found if each.name.endswith("table_lag_seconds")}
        last = {
            each.labels["table"]: each.value for each in found if each.name.endswith("last_change_timestamp_seconds")
        }
        assert lagging["other"] == sorted(by_table.values())[-3] and len(lagging) == 3
        assert last["other"] == max(value for name, value in by_table.items() if name not in last)
        return {each.labels["table"]: each.value for each in found if each.name == "tailrace_sink_rows_total"}

    assert rows(a=9, b=8, c=1, d=2) == {"a": 9, "b": 8, "other": 3}
    assert rows(a=9, b=8, c=100, d=200) == {"a": 9, "b": 8, "other": 300}


def test_a_token_is_asked_for() -> None:
    port = free_port()
    with served(Metrics(port=port, host="0.0.0.0", token="opensesame")) as keep:  # type: ignore[arg-type]
        keep(STATUS)
        assert ask(port)[0] == 401
        assert ask(port, Authorization="Bearer opensesam")[0] == 401
        status, text = ask(port, Authorization="Bearer opensesame")
    assert (status, figures(text)["source_rows_total", "db"]) == (200, 12)


def test_there_is_nothing_else_to_see() -> None:
    port = free_port()
    with served(Metrics(port=port)):
        assert ask(port, "/")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        ask(port)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        used = pytest.raises(SetupError, match=f"127.0.0.1:{port}: Address already in use")
        with used as caught, served(Metrics(port=port)):
            pass
    assert (caught.value.code, caught.value.exit_code) == ("metrics.address", 3)
    assert "ports.metrics" in caught.value.hint
