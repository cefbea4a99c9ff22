"""The tap: one process per source that copies its changes to the log, and is safe to kill at any instant.

python -m tailrace.capture.tap < request.json
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.backoff import Backoff
from tailrace.capture.acknowledge import Acknowledgement
from tailrace.capture.repair import keep_verdict, start_over
from tailrace.capture.snapshots import Admissions, request_needed
from tailrace.changelog import Awaited, Bounds, Holder, LogWriter, Retention, RetentionOutcome, delivered
from tailrace.changelog.versions import index
from tailrace.config.values import MIB
from tailrace.contracts import STILL_OPEN, Source
from tailrace.control import Store, place_of, refuse_lost
from tailrace.control.ledger import SnapshotLedger
from tailrace.control.schemas import SchemaRegistry
from tailrace.errors import Action, LogError, SourceError, TailraceError, decide
from tailrace.machine import lifeline, signals
from tailrace.machine.durable import make_directory, private
from tailrace.machine.space import full_disk
from tailrace.registry import SOURCES

STATUS_S = 0.5
RETENTION_S = 10.0
BLOCKED_S = 1.0


@dataclass(frozen=True)
class Request:
    """What a tap is told on its standard input, so that no secret stands in arguments or the environment."""

    type: str
    config: dict[str, Any]
    log_path: str
    store: str
    status_path: str
    parent: int
    memory_bytes: int
    group_commit_s: float
    segment_bytes: int
    retention_bytes: int
    retention_age_s: float
    retry_initial_s: float
    retry_max_s: float
    retry_jitter: float
    retry_multiplier: float
    awaited: tuple[tuple[tuple[str, ...], int], ...] = ()
    """What must be delivered before the source hears of it: subscribers, and how many of them (`committed.Awaited`)."""


def capture(
    source: Source,
    log: LogWriter,
    admissions: Admissions,
    pause: Callable[[], None],
    ask: Callable[[], None] = lambda: None,
    acknowledgement: Acknowledgement | None = None,
) -> None:
    """Copy changes from `source` to `log` until the source ends, and chunks of snapshots between them. `ask` requests
    what the source wants to be read anew; `acknowledgement` says when the source hears that changes are safe: by
    default, as soon as the log has them."""
    acknowledgement = acknowledgement or Acknowledgement()
    for batch in source.batches(after=log.state()):
        ask()  # before the log has what it is asked for: after a crash in between it is read and asked for again
        end = log.append(batch)
        if batch.resume is not STILL_OPEN:
            acknowledgement.durable(source, end, batch.resume)  # Law 1: durable first.
        acknowledgement.look(source)
        source.hurry(admissions.tick(source.settled()))
        pause()


class Tap:
    """Runs `capture` again and again: reconnects what time can heal, stops on everything else."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._source: Any = None
        self._stopping = False
        self._backoff = Backoff(
            request.retry_initial_s, request.retry_max_s, request.retry_jitter, multiplier=request.retry_multiplier
        )
        self._retention = Retention(request.log_path)
        self._bounds = Bounds(request.retention_bytes, request.retention_age_s)
        self._last_retention = 0.0
        self._last_status = 0.0
        self._captured_rows = 0
        self._indexed = -1

    def stop(self) -> None:
        """Drain: finish what is complete, acknowledge it, end."""
        self._stopping = True
        if self._source is not None:
            self._source.stop()

    def run(self) -> None:
        """Until stopped, or an error that waiting cannot heal, which is raised."""
        while not self._stopping:
            try:
                self._run_once()
            except TailraceError as error:
                if decide(error) is not Action.RETRY:
                    raise
                self._wait_before_retry(error)
            except OSError as error:
                full = full_disk(error)
                if full is None:
                    raise
                self._wait_before_retry(full)
        self._publish("stopped")

    def _run_once(self) -> None:
        request = self._request
        place = place_of(request.store)
        refuse_lost(place, [Path(request.log_path)])
        with (
            contextlib.closing(Store(place)) as store,
            contextlib.closing(
                LogWriter(request.log_path, request.config["id"], segment_bytes=request.segment_bytes)
            ) as log,
        ):
            self._indexed = -1
            model = SOURCES.load(request.type).model_validate(request.config)
            self._source = model.open(request.memory_bytes, request.group_commit_s, store)  # type: ignore[attr-defined]
            self._source.on_wait = lambda: self._publish("starting")
            ledger = SnapshotLedger(store)
            admissions = Admissions(ledger, model, log)  # type: ignore[arg-type]
            if self._stopping:
                return
            try:
                capture(
                    self._source,
                    log,
                    admissions,
                    pause=lambda: self._between(log, store),
                    ask=lambda: request_needed(self._source.needs_snapshot, request.config["id"], ledger, log),
                    acknowledgement=self._acknowledgement(),
                )
            except SourceError as error:
                self._publish("starting")  # before a repair is requested: nothing is read for it until a stream runs
                self._source.close()  # whoever reads a slot keeps it from being dropped
                if not start_over(error, model, ledger, log):  # type: ignore[arg-type]
                    keep_verdict(error, log)
                    raise
            finally:
                self._captured_rows += self._source.vitals.rows
                self._source.vitals.rows = 0
                self._source.close()

    def _acknowledgement(self) -> Acknowledgement:
        pipelines = tuple(Awaited(tuple(names), enough) for names, enough in self._request.awaited)
        return Acknowledgement(partial(delivered, self._request.log_path, pipelines) if pipelines else None)

    def _between(self, log: LogWriter, store: Store) -> None:
        """After each append: registry, status, retention, and the wait while the log is full of what sinks still
        need."""
        self._backoff.reset()
        if log.versions != self._indexed:
            self._indexed = log.versions
            index(self._request.log_path, SchemaRegistry(store))
        now = time.monotonic()
        if now >= self._last_status + STATUS_S:
            self._publish("running")
        if now >= self._last_retention + RETENTION_S:
            self._last_retention = now
            while (verdict := self._retention.enforce(self._bounds)).holders and not self._stopping:
                self._publish_blocked(verdict)
                self._source.keep_alive()
                time.sleep(BLOCKED_S)

    def _wait_before_retry(self, error: TailraceError) -> None:
        deadline, due = time.monotonic() + self._backoff.next(), 0.0
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if time.monotonic() >= due:
                due = time.monotonic() + STATUS_S
                self._publish("waiting", error=error.as_dict(), retry_in_s=round(left, 1))
            time.sleep(0.05)

    def _publish_blocked(self, verdict: RetentionOutcome) -> None:
        """Say who holds the log above its bound, and the way out."""
        full = f"the log is full ({verdict.bytes / MIB:,.1f} MiB of at most {self._bounds.max_bytes / MIB:,.1f} MiB)"
        self._publish(
            "blocked",
            blocked_by=list(verdict.blocked_by),
            holders=[asdict(each) for each in verdict.holders],
            log_bytes=verdict.bytes,
            warnings=[*self._source.warnings, *(f"{full}: {self._way_out(each)}" for each in verdict.holders)],
        )

    def _way_out(self, holder: Holder) -> str:
        unread = f"{holder.rows:,} rows ({holder.bytes / MIB:,.1f} MiB)"
        forget = f"tailrace log forget {shlex.quote(self._request.log_path)} {shlex.quote(holder.name)}"
        return f"{holder.name} has not read {unread} of it; capture goes on when it has, or after `{forget}`"

    def _publish(self, state: str, **more: Any) -> None:
        self._last_status = time.monotonic()
        vitals = asdict(self._source.vitals) if self._source is not None else {}
        if self._source is not None:
            vitals |= {"warnings": self._source.warnings, "settled": self._source.settled()}
            vitals["rows"] += self._captured_rows
        status = {"state": state, "pid": os.getpid(), "at": time.time(), **vitals, **more}
        with contextlib.suppress(OSError):  # a full disk is what the status tells of, not a reason to end
            write_status(Path(self._request.status_path), status)


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace a small status file; readers see the old or the new one."""
    make_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", opener=private) as file:
        file.write(json.dumps(status))
    temporary.replace(path)


def main() -> int:
    """Run one tap; the last status names the error it stopped for."""
    request = Request(**json.load(sys.stdin))
    lifeline.hold(request.parent)
    tap = Tap(request)
    try:
        with signals.answered(lambda _: tap.stop()):
            tap.run()
    except TailraceError as error:
        return _fail(request, error)
    except OSError as error:
        text = f"the change log cannot be written: {error}"
        return _fail(request, LogError("log.io", text, hint="check the data directory"))
    except Exception as error:
        text = f"the tap has a defect: {error!r}"
        _fail(request, SourceError("source.crashed", text, hint="see its standard error; please report it"))
        raise
    return 0


def _fail(request: Request, error: TailraceError) -> int:
    """Leave the reason as the last status."""
    status = {"state": "failed", "pid": os.getpid(), "at": time.time(), "error": error.as_dict()}
    with contextlib.suppress(OSError):
        write_status(Path(request.status_path), status)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
