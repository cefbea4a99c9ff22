"""The readers that need no Spark: PostgreSQL's `pg_recvlogical`, and the tap alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.meter import Meter
from benchmarks.profile import Profiler
from benchmarks.report import Measurement
from benchmarks.stage import Stage, Table, Walsender
from benchmarks.waiting import until
from tailrace.capture.postgres import PostgresSource
from tailrace.errors import SetupError
from tailrace.spec import Platform
from tailrace.supervisor.run.taps import TapProcess

START_S = 300.0
"""Enough for a first start, which compiles the decoder."""
WARM_ROWS = 100


class Recvlogical:
    """`pg_recvlogical` with pgoutput, into a file."""

    def __init__(self, stage: Stage, slot: str, publication: str) -> None:
        self._stage, self._slot, self._publication = stage, slot, publication

    def measure(self, rows: int, end: str) -> Measurement:
        """From the moment the server starts decoding until it has written everything before `end`."""
        output = self._stage.folder / f"{self._slot}.out"
        process = subprocess.Popen(self._command(str(output), end), stderr=subprocess.PIPE, text=True)
        until(lambda: process.poll() is not None or self._started(), "pg_recvlogical streams", seconds=60)
        sender = self._stage.walsender(self._slot)
        roles = {process.pid: "pg_recvlogical"} | ({sender.pid: "walsender"} if sender else {})
        with Meter(self._stage.roles() | roles) as meter:
            _, errors = process.communicate()
        if process.returncode:
            raise SetupError("benchmark.pg_recvlogical", errors.strip(), hint="see its message")
        size = output.stat().st_size
        output.unlink()
        return Measurement("pg_recvlogical", rows, meter.usage(), {"mib": round(size / (1 << 20), 1)})

    def _started(self) -> bool:
        return self._stage.walsender(self._slot) is not None

    def _command(self, output: str, end: str) -> list[str]:
        program = str(self._stage.postgres.bin("pg_recvlogical"))
        options = ["-o", "proto_version=1", "-o", f"publication_names={self._publication}"]
        where = ["--dbname", self._stage.dsn, "--slot", self._slot, "--file", output]
        return [program, "--start", "--no-loop", "--endpos", end, *where, *options]


class Tap:
    """The tap as the supervisor starts it, into a log of its own, with nobody reading that."""

    def __init__(self, stage: Stage, name: str, table: Table) -> None:
        self._stage = stage
        self.name = name
        source = PostgresSource.model_validate({"id": name, "dsn": stage.dsn, "tables": [f"public.{table.name}"]})
        self.slot = source.slot_name
        self.process = TapProcess("postgres", source, Platform(data_dir=stage.folder / name))
        self.base = 0

    @property
    def pid(self) -> int:
        pid = self.process.status().pid
        assert pid is not None
        return pid

    def roles(self) -> dict[int, str]:
        return self._stage.roles() | {self.pid: "tap"}

    def rows(self) -> int:
        """Rows durable in the log since `base`."""
        return (self.process.head() or 0) - self.base

    def measure(self, rows: int, sender: Walsender, profiler: Profiler) -> Measurement:
        """From the release of its walsender until its log holds `rows` rows durably."""
        roles = self.roles() | {sender.pid: "walsender"}
        with profiler.of("tap", [self.pid]), Meter(roles) as meter:
            sender.release()
            until(lambda: self.rows() >= rows, f"{rows} rows in the log of {self.name}")
        if self.rows() != rows:
            raise SetupError("benchmark.rows", f"the log has {self.rows()} rows, not {rows}", hint="please report it")
        return Measurement("tap", rows, meter.usage())


@contextmanager
def running_tap(stage: Stage, name: str, table: Table) -> Iterator[Tap]:
    """A tap that has carried a few changes of `table` already; ended and its slot dropped at the end."""
    tap = Tap(stage, name, table)
    tap.process.start()
    try:
        until(lambda: _streams(tap), f"the tap {name} streams", seconds=START_S)
        table.write(WARM_ROWS)
        until(lambda: tap.rows() >= WARM_ROWS, f"the tap {name} is warm", seconds=START_S)
        tap.base += tap.rows()
        yield tap
    finally:
        if not tap.process.stop(timeout=30):
            tap.process.kill()
        if stage.postgres.running:
            stage.forget(tap.slot)


def _streams(tap: Tap) -> bool:
    tap.process.tick()
    if tap.process.failure is not None:
        raise tap.process.failure
    return tap.process.status().state == "running"
