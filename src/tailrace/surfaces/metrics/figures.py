"""The last status of a run as Prometheus' figures. There is no other bookkeeping: what is gone from the status has no
series, and what is not known has no sample."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from tailrace.histogram import Histogram
from tailrace.supervisor.status import (
    LetterStatus,
    PipelineStatus,
    SinkState,
    SinkStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TapState,
    TapStatus,
)
from tailrace.surfaces.metrics.tables import TABLES, Named

if TYPE_CHECKING:
    from prometheus_client import Metric

Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""Values by the values of their labels; None: there is none."""


class LastStatus:
    """A collector of Prometheus' client over the last status it was given. `tables` of each sink and source have series
    of their own, and all others are told together, as `other`."""

    def __init__(self, tables: int = TABLES) -> None:
        self._status: Status | None = None
        self._named = Named(tables)
        self._turn = threading.Lock()

    def keep(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Scrapes may come at the same time."""
        with self._turn:
            found = [] if self._status is None else list(self._families(self._status))
        yield from found

    def _families(self, status: Status) -> Iterator[Metric]:
        yield from _of_the_run(status)
        yield from _of_sources(status.taps, self._named)
        yield from _of_sinks(status.sinks, self._named)
        yield from _of_lags(status.sinks, self._named)
        yield from _of_batches(status.sinks)
        yield from _of_snapshots(status.snapshots)
        yield from _of_pipelines(status.pipelines)
        yield from _of_letters(status.letters)
        self._named.keep_only({_place(each) for each in status.sinks} | {(each.source,) for each in status.taps})


def _of_the_run(status: Status) -> Iterator[Metric]:
    from tailrace import __version__

    yield _gauge("build_info", "1; which version runs.", ("version",), [((__version__,), 1.0)])
    yield _gauge("start_timestamp_seconds", "When the run began.", (), [((), status.started)])
    yield _gauge("status_timestamp_seconds", "When the figures were taken.", (), [((), status.at)])
    yield _gauge("pipelines", "Pipelines of the run.", (), [((), len(status.pipelines))])


def _of_sources(taps: tuple[TapStatus, ...], named: Named) -> Iterator[Metric]:
    def of(value: Callable[[TapStatus], float | None]) -> Samples:
        return [((tap.source,), value(tap)) for tap in taps]

    at = ("source",)
    states = (((tap.source, state), float(tap.state == state)) for tap in taps for state in get_args(TapState))
    yield _gauge("source_state", "1 for the state its tap is in.", ("source", "state"), states)
    age = "How long ago the tap told what is told here; absent: it has told nothing yet."
    yield _gauge("source_status_age_seconds", age, at, of(lambda tap: tap.age_s))
    yield _gauge("source_lag_bytes", "WAL the log is behind the server.", at, of(lambda tap: tap.lag_bytes))
    yield _gauge("source_lag_seconds", "All that is older is in the log.", at, of(lambda tap: tap.lag_s))
    yield _gauge("source_retained_wal_bytes", "WAL kept for the slot.", at, of(lambda tap: tap.held_bytes))
    safe = "WAL that may be written before the slot is lost; absent: no bound."
    yield _gauge("source_safe_wal_bytes", safe, at, of(lambda tap: tap.safe_wal_size))
    loss = "How long that lasts, as things go; absent: no end in sight."
    yield _gauge("source_time_to_loss_seconds", loss, at, of(lambda tap: tap.time_to_loss_s))
    yield _gauge("source_log_end_offset", "Where its log ends.", at, of(lambda tap: tap.head))
    position = "How far it has read: where it is in the server's WAL."
    yield _gauge("source_received_lsn", position, at, of(lambda tap: tap.received_lsn))
    durable = "How far of that is in the log."
    yield _gauge("source_durable_lsn", durable, at, of(lambda tap: tap.durable_lsn))
    last = "When its newest change was committed."
    yield _gauge("source_last_commit_timestamp_seconds", last, at, of(lambda tap: _seconds(tap.last_commit_us)))
    yield _gauge("source_warnings", "Warnings that stand.", at, of(lambda tap: len(tap.warnings)))
    yield _counter("source_rows", "Rows captured.", at, of(lambda tap: tap.rows))
    read = "Rows of snapshots that came into the log."
    yield _counter("source_snapshot_rows", read, at, of(lambda tap: tap.snapshot_rows))
    written = "Bytes by which the log has grown."
    yield _counter("source_log_bytes", written, at, of(lambda tap: tap.log_bytes))
    yield _counter("source_transactions", "Transactions captured.", at, of(lambda tap: tap.transactions))
    yield _counter("source_restarts", "Restarts of its tap.", at, of(lambda tap: tap.restarts))
    errors = (((tap.source, code), count) for tap in taps for code, count in sorted(tap.errors.items()))
    text = "Attempts of its tap that failed, by the error's code; each was followed by another."
    yield _counter("source_errors", text, (*at, "code"), errors)
    versions = (
        ((tap.source, table), count)
        for tap in taps
        for table, count in named.summed((tap.source,), tap.schemas, tap.schemas).items()
    )
    text = "Versions of a table's schema that the log knows: another one is a schema change."
    yield _gauge("source_schema_versions", text, (*at, "table"), versions)


def _of_sinks(sinks: tuple[SinkStatus, ...], named: Named) -> Iterator[Metric]:
    def of(value: Callable[[SinkStatus], float | None]) -> Samples:
        return [(_place(sink), value(sink)) for sink in sinks]

    def summed(value: Callable[[TableStatus], float | None]) -> Samples:
        for sink in sinks:
            rows, values = _rows(sink), {name: value(table) for name, table in sink.tables.items()}
            yield from (
                ((*_place(sink), name), each) for name, each in named.summed(_place(sink), rows, values).items()
            )

    at = ("pipeline", "sink", "source")
    states = (((*_place(sink), state), float(sink.state == state)) for sink in sinks for state in get_args(SinkState))
    yield _gauge("sink_state", "1 for the state it is in.", (*at, "state"), states)
    yield _gauge(
        "sink_offset", "Everything below is delivered; absent: not known yet.", at, of(lambda sink: sink.offset)
    )
    yield _gauge("sink_warnings", "Warnings that stand.", at, of(lambda sink: len(sink.warnings)))
    errors = (((*_place(sink), code), count) for sink in sinks for code, count in sorted(sink.errors.items()))
    text = "Attempts that failed, by the error's code."
    yield _counter("sink_errors", text, (*at, "code"), errors)
    yield _counter("sink_rows", "Rows delivered.", (*at, "table"), summed(lambda table: table.rows))
    yield _counter("sink_bytes", "Bytes of rows delivered.", (*at, "table"), summed(lambda table: table.bytes))
    dropped = (
        ((*_place(sink), each.table, each.processor, each.reason), each.changes)
        for sink in sinks
        for each in sink.dropped
    )
    text = "Changes that a processor dropped, by its reason."
    yield _counter("sink_dropped_changes", text, (*at, "table", "processor", "reason"), _added_up(dropped, 3, named))
    skipped = (((*_place(sink), each.table, each.code), each.records) for sink in sinks for each in sink.skipped)
    text = "Records that the target refused and that are gone, by the error's code."
    yield _counter("sink_skipped_records", text, (*at, "table", "code"), _added_up(skipped, 3, named))
    last = (
        ((*_place(sink), name), value)
        for sink in sinks
        for name, value in named.latest(
            _place(sink), _rows(sink), {name: _seconds(table.last_us) for name, table in sink.tables.items()}
        ).items()
    )
    text = "When the newest delivered change was committed."
    yield _gauge("sink_last_change_timestamp_seconds", text, (*at, "table"), last)
    debts = (
        ((*_place(sink), table, kind), float(count))
        for sink in sinks
        for table, debt in sink.debt.items()
        for kind, count in vars(debt).items()
    )
    text = "Files and snapshots of a lake table that upkeep has to deal with, when it last looked."
    yield _gauge("sink_debt", text, (*at, "table", "kind"), _added_up(debts, 3, named))


def _of_lags(sinks: tuple[SinkStatus, ...], named: Named) -> Iterator[Metric]:
    def of(value: Callable[[SinkStatus], float | None]) -> Samples:
        return [(_place(sink), value(sink)) for sink in sinks]

    at = ("pipeline", "sink", "source")
    yield _gauge("sink_lag_rows", "Rows that wait in the log; absent: not known.", at, of(lambda sink: sink.lag_rows))
    size = "What these weigh in the log; absent: not known, as where more wait than are looked at."
    yield _gauge("sink_lag_bytes", size, at, of(lambda sink: sink.lag_bytes))
    yield _gauge("sink_lag_seconds", "How long the oldest has waited there.", at, of(lambda sink: sink.lag_s))
    tables = (
        ((*_place(sink), name), value)
        for sink in sinks
        if sink.lag_tables_s is not None
        for name, value in named.worst({name: 0.0 for name in sink.tables} | sink.lag_tables_s).items()
    )
    text = "How long the table's oldest change has waited there, of those furthest behind; absent: not known."
    yield _gauge("sink_table_lag_seconds", text, (*at, "table"), tables)


def _of_batches(sinks: tuple[SinkStatus, ...]) -> Iterator[Metric]:
    def of(value: Callable[[SinkStatus], Histogram]) -> Iterable[tuple[tuple[str, ...], Histogram]]:
        return [(_place(sink), value(sink)) for sink in sinks]

    at = ("pipeline", "sink", "source")
    batches = [(_place(sink), float(sink.batches)) for sink in sinks]
    yield _counter("sink_batches", "Batches delivered.", at, batches)
    bound = "Batches that only their bound ended."
    limited = [(_place(sink), float(sink.bound_limited)) for sink in sinks]
    yield _counter("sink_bound_limited_batches", bound, at, limited)
    text = "When its last batch was delivered."
    yield _gauge(
        "sink_last_delivery_timestamp_seconds", text, at, [(_place(sink), sink.last_delivery) for sink in sinks]
    )
    text = "From commit at the source until delivered: of the newest change of each table in each batch."
    yield _histogram("sink_delay_seconds", text, at, of(lambda sink: sink.delay_s))
    yield _histogram("sink_batch_seconds", "How long a batch took.", at, of(lambda sink: sink.batch_s))
    yield _histogram("sink_batch_rows", "How many rows a batch delivered.", at, of(lambda sink: sink.batch_rows))


def _of_snapshots(snapshots: tuple[SnapshotStatus, ...]) -> Iterator[Metric]:
    def of(value: Callable[[SnapshotStatus], float | None]) -> Samples:
        return [((each.source, each.run, each.table), value(each)) for each in snapshots]

    at = ("source", "run", "table")
    yield _gauge("snapshot_rows", "Rows in the log, of a snapshot under way.", at, of(lambda each: each.rows))
    failed = of(lambda each: float(each.state == "failed"))
    yield _gauge("snapshot_failed", "1 where the table could not be read.", at, failed)
    estimate = "Rows the database thinks the table has; absent: it has no guess."
    yield _gauge("snapshot_estimated_rows", estimate, at, of(lambda each: each.estimate))


def _of_pipelines(pipelines: tuple[PipelineStatus, ...]) -> Iterator[Metric]:
    text = "Everything below is delivered by its commit policy; absent: not known yet."
    samples = [((each.pipeline,), each.committed) for each in pipelines]
    yield _gauge("pipeline_committed_offset", text, ("pipeline",), samples)


def _of_letters(letters: tuple[LetterStatus, ...]) -> Iterator[Metric]:
    def of(value: Callable[[LetterStatus], float | None]) -> Samples:
        return [((each.pipeline,), value(each)) for each in letters]

    at = ("pipeline",)
    yield _gauge("dlq_entries", "Dead letters that something is left to do about.", at, of(lambda each: each.open))
    held = "Those of them that wait behind another of their key."
    yield _gauge("dlq_held_entries", held, at, of(lambda each: each.held))
    ratio = "Their share of `max_entries`."
    yield _gauge("dlq_saturation_ratio", ratio, at, of(lambda each: each.open / each.max_entries))
    groups = (((each.pipeline, group.sink, group.code), group.letters) for each in letters for group in each.groups)
    yield _gauge("dlq_letters", "Open dead letters by sink and by the error's code.", (*at, "sink", "code"), groups)
    yield _counter("dlq_evicted", "Letters gone for want of room.", at, of(lambda each: each.evicted))
    yield _counter("dlq_expired", "Letters gone for their age.", at, of(lambda each: each.expired))


def _added_up(samples: Iterable[tuple[tuple[str, ...], float]], table: int, named: Named) -> Samples:
    """With `other` for the tables that have no series of their own; label number `table` is the table's."""
    found: dict[tuple[str, ...], float] = {}
    for labels, value in samples:
        name = named.name(labels[:table], labels[table])
        place = (*labels[:table], name, *labels[table + 1 :])
        found[place] = found.get(place, 0.0) + value
    return found.items()


def _place(sink: SinkStatus) -> tuple[str, str, str]:
    return sink.pipeline, sink.sink, sink.source


def _rows(sink: SinkStatus) -> Mapping[str, float]:
    return {name: table.rows for name, table in sink.tables.items()}


def _seconds(us: int | None) -> float | None:
    return us / 1e6 if us else None


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"tailrace_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"tailrace_{name}", text, labels=labels), samples)


def _histogram(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"tailrace_{name}", text, labels=labels)
    for values, histogram in samples:
        family.add_metric(values, histogram.cumulative(), histogram.total)
    return family


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    metric: Metric = family
    return metric
