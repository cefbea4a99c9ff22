"""Tap processes: started with their request on stdin, watched, restarted when they die."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tailrace.capture.tap import Request
from tailrace.changelog import Awaited
from tailrace.config import Model, Secret
from tailrace.control import text_of
from tailrace.errors import LogError, SetupError, SourceError, TailraceError
from tailrace.machine.durable import make_directory, private
from tailrace.spec import Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.heads import LogEnd
from tailrace.supervisor.status import HolderStatus, TapState, TapStatus

HEALTHY_S = 30.0
"""A tap that lived this long is restarted without waiting."""
SILENT_S = 5.0
"""A tap tells every half second how it is. One that did not for this long is not said to run."""
SLOT_S = 30.0
"""A tap looks at its slot every ten seconds. What it saw is told for this long, while it runs."""
OF_SLOT = ("lag_bytes", "lag_s", "held_bytes", "safe_wal_size", "time_to_loss_s")
_TOLD_AS_ZERO = ("last_commit_us", "received_lsn", "durable_lsn")
"""What a tap tells as zero before it knows."""


class TapProcess:
    """The tap of one source. `tick` keeps it alive; `failure` is why it stopped for good."""

    def __init__(self, kind: str, source: Model, platform: Platform, awaited: Sequence[Awaited] = ()) -> None:
        """`awaited`: what must be delivered before the source hears that it is safe."""
        self.source_id: str = source.id  # type: ignore[attr-defined]
        self._kind, self.source, self._platform, self._awaited = kind, source, platform, awaited
        self._layout = Layout.of(platform)
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = platform.retry.backoff()
        self._restarts = -1
        self._started = 0.0
        self._next_start = 0.0
        self._end = LogEnd(self._layout.log(self.source_id))
        self.failure: TailraceError | None = None
        self.notices: tuple[str, ...] = ()
        """What the supervisor found when it started, to be told with the tap's warnings."""

    def start(self) -> None:
        status = self._layout.tap_status(self.source_id)
        make_directory(status.parent)
        status.unlink(missing_ok=True)
        with open(self._layout.tap_output(self.source_id), "ab", opener=private) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.capture.tap"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is for us; we then drain it in order
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(dataclasses.asdict(self._request())).encode())
        self._restarts += 1
        self._started = time.monotonic()

    def tick(self) -> None:
        """Restart a tap that was killed or crashed; keep the reason of one that gave up, or whose log is damaged."""
        self.head()
        if self.failure is not None or self._process is None:
            return
        code = self._process.poll()
        if code is None:
            return
        error = self._read_status().get("error")
        if code > 0 and error:
            kind = SetupError if code == SetupError.exit_code else SourceError
            self.failure = kind(error["code"], error["message"], hint=error["hint"], where=error["where"])
            return
        if self._next_start == 0.0:
            healthy = time.monotonic() - self._started > HEALTHY_S
            self._next_start = time.monotonic() + (0.0 if healthy else self._backoff.next())
        if time.monotonic() >= self._next_start:
            self._next_start = 0.0
            self.start()

    def stop(self, timeout: float) -> bool:
        """SIGTERM drains it; False if it did not end in time."""
        if self._process is None or self._process.poll() is not None:
            return True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """The last resort; it hurts nothing (Law 7)."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def head(self) -> int | None:
        """The log's end; None while there is no log. Where it cannot be read, nobody can deliver what is behind that
        place: the tap is stopped, so that the source keeps it, and `failure` says why."""
        try:
            return self._end.head()
        except LogError as error:
            if self.failure is None:
                self.failure = error
                self.stop(0.0)
            return None

    def status(self) -> TapStatus:
        head, fields, now = self.head(), self._read_status(), time.time()
        age = max(0.0, now - fields["at"]) if "at" in fields else None
        state = self._state(fields, age)
        known = {name: fields[name] for name in TapStatus.__dataclass_fields__ if name in fields}
        known |= {name: fields.get(name) or None for name in _TOLD_AS_ZERO}
        if state not in ("running", "blocked") or now - (fields.get("slot_at") or 0.0) > SLOT_S:
            known |= {**dict.fromkeys(OF_SLOT), "wal_status": ""}
        known |= {
            "source": self.source_id,
            "state": state,
            "age_s": age,
            "restarts": max(0, self._restarts),
            "head": head,
            "holders": tuple(HolderStatus(**each) for each in fields.get("holders", ())),
            "warnings": (*fields.get("warnings", ()), *self.notices),
        }
        if self.failure is not None:
            known["error"] = self.failure.as_dict()
        return TapStatus(**known)

    def _state(self, fields: dict[str, Any], age: float | None) -> TapState:
        """What it last said of itself, as far as that can still be true."""
        state: TapState = fields.get("state", "starting")
        if self.failure is not None:
            return "failed"
        if state not in ("failed", "stopped") and self._process is not None and self._process.poll() is not None:
            return "waiting"
        if state in ("running", "blocked") and age is not None and age > SILENT_S:
            return "silent"
        return state

    def is_streaming(self) -> bool:
        return is_streaming(self._layout.tap_status(self.source_id))

    def caught_up_with(self, position: str) -> bool:
        """Whether everything committed before `position` at the source is in the log."""
        fields = self._read_status()
        settled = fields.get("settled")
        fresh = fields.get("state") == "running"
        return bool(fresh and settled and self.source.is_past(settled, position))  # type: ignore[attr-defined]

    def _read_status(self) -> dict[str, Any]:
        return _told(self._layout.tap_status(self.source_id))

    def _request(self) -> Request:
        platform = self._platform
        return Request(
            type=self._kind,
            config=_revealed(self.source),
            log_path=str(self._layout.log(self.source_id)),
            store=text_of(self._layout.store),
            status_path=str(self._layout.tap_status(self.source_id)),
            parent=os.getpid(),
            memory_bytes=platform.tap.memory_bytes,
            group_commit_s=platform.log.group_commit.total_seconds(),
            segment_bytes=platform.log.segment_bytes,
            retention_bytes=platform.log.retention.max_bytes,
            retention_age_s=platform.log.retention.max_age.total_seconds(),
            retry_initial_s=platform.retry.initial.total_seconds(),
            retry_max_s=platform.retry.max.total_seconds(),
            retry_jitter=platform.retry.jitter,
            retry_multiplier=platform.retry.multiplier,
            awaited=tuple((each.names, each.enough) for each in self._awaited),
        )


def is_streaming(status: Path) -> bool:
    """Whether the tap that writes this status reads its source's stream."""
    return _told(status).get("state") == "running"


def _told(status: Path) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(status.read_text())
    except FileNotFoundError:
        return {}
    return fields


def _revealed(model: Model) -> dict[str, Any]:
    """A configuration with its secrets in the clear, for the pipe to the tap only."""

    def reveal(value: Any) -> Any:
        if isinstance(value, Secret):
            return value.get_secret_value()
        if isinstance(value, Model):
            return {name: reveal(getattr(value, name)) for name in type(value).model_fields}
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, os.PathLike):
            return str(value)
        if isinstance(value, tuple | list):
            return [reveal(item) for item in value]
        return value

    revealed: dict[str, Any] = reveal(model)
    return revealed
