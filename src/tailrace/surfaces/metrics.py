"""`GET /metrics`: the last status of a run, as Prometheus reads it. There is no other bookkeeping."""

from __future__ import annotations

import hmac
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from tailrace.errors import SetupError
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

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from tailrace.spec.platform import Metrics

CLIENT_S = 10.0
"""A client that neither asks nor reads for this long is hung up on."""

Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""Values by the values of their labels; None: there is none."""


@contextmanager
def served(settings: Metrics | None) -> Iterator[Callable[[Status], None]]:
    """Answer until the block ends; yields what is to be called with each status. Nothing listens where there are no
    settings. Raises `metrics.address` where nothing can."""
    told = LastStatus()
    if settings is None:
        yield told.keep
        return
    with _Server(settings, told) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        thread.start()
        try:
            yield told.keep
        finally:
            server.shutdown()
            thread.join()


class LastStatus:
    """A collector of Prometheus' client over the last status it was given."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def keep(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        if (status := self._status) is not None:
            yield _gauge("status_timestamp_seconds", "When the figures were taken.", (), [((), status.at)])
            yield from _of_sources(status.taps)
            yield from _of_sinks(status.sinks)
            yield from _of_snapshots(status.snapshots)
            yield from _of_pipelines(status.pipelines)
            yield from _of_letters(status.letters)


def _of_sources(taps: tuple[TapStatus, ...]) -> Iterator[Metric]:
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
    last = "When its newest change was committed."
    yield _gauge("source_last_commit_timestamp_seconds", last, at, of(lambda tap: _seconds(tap.last_commit_us)))
    yield _gauge("source_warnings", "Warnings that stand.", at, of(lambda tap: len(tap.warnings)))
    yield _counter("source_rows", "Rows captured.", at, of(lambda tap: tap.rows))
    yield _counter("source_transactions", "Transactions captured.", at, of(lambda tap: tap.transactions))
    yield _counter("source_restarts", "Restarts of its tap.", at, of(lambda tap: tap.restarts))


def _of_sinks(sinks: tuple[SinkStatus, ...]) -> Iterator[Metric]:
    def of(value: Callable[[SinkStatus], float | None]) -> Samples:
        return [(_place(sink), value(sink)) for sink in sinks]

    def of_tables(value: Callable[[TableStatus], float | None]) -> Samples:
        return (((*_place(sink), name), value(table)) for sink in sinks for name, table in sink.tables.items())

    at = ("pipeline", "sink", "source")
    states = (((*_place(sink), state), float(sink.state == state)) for sink in sinks for state in get_args(SinkState))
    yield _gauge("sink_state", "1 for the state it is in.", (*at, "state"), states)
    yield _gauge(
        "sink_offset", "Everything below is delivered; absent: not known yet.", at, of(lambda sink: sink.offset)
    )
    yield _gauge("sink_lag_rows", "Rows that wait in the log; absent: not known.", at, of(lambda sink: sink.lag_rows))
    yield _gauge("sink_lag_seconds", "How long the oldest has waited there.", at, of(lambda sink: sink.lag_s))
    yield _gauge("sink_warnings", "Warnings that stand.", at, of(lambda sink: len(sink.warnings)))
    yield _counter("sink_batches", "Batches delivered.", at, of(lambda sink: sink.batches))
    bound = "Batches that only their bound ended."
    yield _counter("sink_bound_limited_batches", bound, at, of(lambda sink: sink.bound_limited))
    yield _counter("sink_rows", "Rows delivered.", (*at, "table"), of_tables(lambda table: table.rows))
    yield _counter("sink_bytes", "Bytes of rows delivered.", (*at, "table"), of_tables(lambda table: table.bytes))
    dropped = (
        ((*_place(sink), each.table, each.processor, each.reason), each.changes)
        for sink in sinks
        for each in sink.dropped
    )
    text = "Changes that a processor dropped, by its reason."
    yield _counter("sink_dropped_changes", text, (*at, "table", "processor", "reason"), dropped)
    skipped = (((*_place(sink), each.table, each.code), each.records) for sink in sinks for each in sink.skipped)
    text = "Records that the target refused and that are gone, by the error's code."
    yield _counter("sink_skipped_records", text, (*at, "table", "code"), skipped)
    last = of_tables(lambda table: _seconds(table.last_us))
    text = "When the newest delivered change was committed."
    yield _gauge("sink_last_change_timestamp_seconds", text, (*at, "table"), last)


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
    yield _counter("dlq_evicted", "Letters gone for want of room.", at, of(lambda each: each.evicted))
    yield _counter("dlq_expired", "Letters gone for their age.", at, of(lambda each: each.expired))


def _place(sink: SinkStatus) -> tuple[str, str, str]:
    return sink.pipeline, sink.sink, sink.source


def _seconds(us: int | None) -> float | None:
    return us / 1e6 if us else None


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"tailrace_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"tailrace_{name}", text, labels=labels), samples)


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    metric: Metric = family
    return metric


class _Server(socketserver.ThreadingTCPServer):
    """Answers each client in a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, settings: Metrics, told: LastStatus) -> None:
        from prometheus_client import CollectorRegistry

        self.registry: CollectorRegistry = CollectorRegistry()
        self.registry.register(told)
        self.expected = f"Bearer {settings.token.get_secret_value()}" if settings.token is not None else None
        try:
            [(self.address_family, *_, address), *_] = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM
            )
            super().__init__(address, _Answer)  # type: ignore[arg-type]
        except OSError as error:
            raise SetupError(
                "metrics.address",
                f"metrics cannot be served on {settings.host}:{settings.port}: {error.strerror or error}",
                hint="free the port, or choose another in the platform document's ports.metrics",
            ) from None


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout: ClassVar[float] = CLIENT_S

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        if self.path.partition("?")[0] != "/metrics":
            return self._say(HTTPStatus.NOT_FOUND, "text/plain", b"see /metrics\n")
        if not self._is_allowed():
            return self._say(HTTPStatus.UNAUTHORIZED, "text/plain", b"a bearer token is needed\n")
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        return self._say(HTTPStatus.OK, kind, encode(self.server.registry))

    def _is_allowed(self) -> bool:
        expected, given = self.server.expected, self.headers.get("Authorization", "")
        return expected is None or hmac.compare_digest(given.encode(), expected.encode())

    def _say(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Who asked is nobody's business."""
