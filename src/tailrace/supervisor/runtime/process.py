"""A runtime as its server sees it: started, told its order, started again when it dies or falls silent."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection

from tailrace.contracts import Sink
from tailrace.errors import SparkError, TailraceError
from tailrace.machine.durable import make_directory, private
from tailrace.spec import Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.runtime import Assignment, Order, Report, Request

HEALTHY_S = 60.0
"""A runtime that lived this long is started again without waiting."""
SILENT_S = 30.0
"""A runtime reports twice a second. One that has not for this long hangs, and is ended."""
STARTING_S = 300.0
"""How long its Spark may take to start: the first one of all may fetch libraries."""

NOTHING = Report(0)
"""The word of a runtime of which nothing lives."""


class RuntimeProcess:
    """`order` says what it shall carry; `tick` keeps it alive."""

    def __init__(
        self, name: str, sinks: tuple[Sink, ...], platform: Platform, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`sinks`: those whose libraries its Spark needs."""
        self.name = name
        self.restarts = 0
        self.failure: TailraceError | None = None
        """Why it is not there just now."""
        self._sinks, self._platform, self._clock = sinks, platform, clock
        self._layout = Layout.of(platform)
        self._backoff = platform.retry.backoff()
        self._order = Order()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: _Link | None = None
        self._started = self._next_start = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to carry, and carries nothing."""
        return not self._order.pipelines and not self.report.pipelines

    @property
    def report(self) -> Report:
        """Its last word; an empty one where nothing of it lives."""
        return NOTHING if self._link is None else self._link.report

    @property
    def age_s(self) -> float | None:
        """How old its last word is."""
        return None if self._link is None or self._link.report is NOTHING else self._clock() - self._link.heard

    def has_left(self, pipeline: str) -> bool:
        """Whether nothing of a pipeline lives here, nor will by the last order."""
        if self._process is None:
            return pipeline not in self._order.pipelines
        report = self.report
        return report.order >= self._order.number and pipeline not in {*report.pipelines, *self._order.pipelines}

    def order(self, pipelines: Mapping[str, Assignment], snapshots: frozenset[str]) -> None:
        """What it shall carry from now on."""
        order = replace(self._order, pipelines=dict(pipelines), snapshots=snapshots)
        if order != self._order:
            self._order = replace(order, number=order.number + 1)
            if self._link is not None:
                self._link.send(self._order)

    def tick(self) -> None:
        if self._process is None:
            if self._clock() >= self._next_start:
                self._start()
            return
        if self._process.poll() is not None:
            self._mourn(SparkError("runtime.died", f"the runtime {self.name} has ended", hint=self._hint()))
        elif self._is_silent():
            self.kill()
            self._mourn(SparkError("runtime.silent", f"the runtime {self.name} hung and was ended", hint=self._hint()))

    def end(self) -> None:
        """Let it drain what it carries, and end. Returns at once; see `has_ended`."""
        if self._link is not None:
            self._link.close()

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start(self) -> None:
        here, there = socket.socketpair()
        make_directory(self._layout.runtime_output(self.name).parent)
        with open(self._layout.runtime_output(self.name), "ab", opener=private) as output, there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.supervisor.runtime", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is for the server, which drains it in order
            )
        self._started = self._clock()
        self._link = _Link(Connection(here.detach()), self._clock)
        self._link.send(Request(os.getpid(), self._platform, self._sinks))
        self._link.send(self._order)

    def _is_silent(self) -> bool:
        assert self._link is not None
        bound = SILENT_S if self._link.report.ready else STARTING_S
        return self._clock() - max(self._link.heard, self._started) > bound

    def _mourn(self, error: TailraceError) -> None:
        if self._link is not None:
            self._link.close()
        self._process, self._link, self.failure = None, None, error
        self.restarts += 1
        healthy = self._clock() - self._started > HEALTHY_S
        if healthy:
            self._backoff.reset()
        self._next_start = self._clock() + (0.0 if healthy else self._backoff.next())

    def _hint(self) -> str:
        return f"it is started again by itself; if that repeats, see {self._layout.runtime_output(self.name)}"


class _Link:
    """The server's end of the socket."""

    def __init__(self, connection: Connection, clock: Callable[[], float]) -> None:
        self._connection, self._clock = connection, clock
        self._sending = threading.Lock()
        self.report, self.heard = NOTHING, float("-inf")
        threading.Thread(target=self._listen, name="runtime/reports", daemon=True).start()

    def send(self, message: object) -> None:
        """A runtime that is gone hears nothing, and is found dead soon."""
        try:
            with self._sending:
                self._connection.send_bytes(pickle.dumps(message))
        except OSError:
            return

    def close(self) -> None:
        """The runtime sees the end of its orders."""
        try:
            with self._sending, socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                line.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _listen(self) -> None:
        try:
            while True:
                report = self._connection.recv()
                self.report, self.heard = report, self._clock()
        except (EOFError, OSError):
            self.report = NOTHING
