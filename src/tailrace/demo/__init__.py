"""The demo: a shop in PostgreSQL, a workload on it, its changes in files, the proof that both are equal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.capture.postgres import PostgresSource
from tailrace.demo.place import DemoFolder, claim
from tailrace.demo.proof import TableProof, compare
from tailrace.demo.shop import TABLES, create_shop
from tailrace.demo.workload import ShopWorkload
from tailrace.supervisor.run import Supervisor
from tailrace.supervisor.status import Status

__all__ = ["TABLES", "Demo", "DemoFolder", "Outcome", "TableProof", "claim"]


@dataclass(frozen=True)
class Outcome:
    """How a demo ended. `proofs` is None when it was stopped before everything was delivered."""

    status: Status
    proofs: tuple[TableProof, ...] | None

    @property
    def rows(self) -> int:
        return sum(proof.rows for proof in self.proofs or ())

    @property
    def differing(self) -> int:
        return sum(proof.differing for proof in self.proofs or ())


class Demo:
    """One run on the database at `dsn`, which is the demo's own."""

    def __init__(self, place: DemoFolder, dsn: str, *, rate: float) -> None:
        create_shop(dsn)
        self._place, self._dsn = place, dsn
        pipeline, platform = place.documents(dsn)
        assert isinstance(pipeline.source, PostgresSource)
        self._supervisor = Supervisor([pipeline], platform)
        self._workload = ShopWorkload(dsn, pipeline.source.slot_name, rate=rate)
        self._finishing = self._stopped = False

    def run(self, seconds: float | None, on_tick: Callable[[Status], None]) -> Outcome:
        """Until a signal, or after `seconds` of changes. Then the workload ends, what it did is delivered,
        and files and tables are compared. A second signal does not wait for the delivery."""

        def tick(status: Status) -> None:
            on_tick(status)
            if all(sink.state in ("stopped", "failed") for sink in status.sinks):
                return  # the last look, after the end
            idle = self._workload.ident is None and not self._finishing
            if idle and all(sink.state == "running" for sink in status.sinks):
                self._workload.start()
            began = self._workload.began
            over = seconds is not None and began is not None and time.monotonic() >= began + seconds
            if over or self._workload.error is not None:
                self._finish()

        try:
            status = self._supervisor.run(on_tick=tick, on_signal=self._signalled)
        finally:
            self._end_workload()
        if self._workload.error is not None:
            raise self._workload.error
        whole = self._finishing and not self._stopped
        return Outcome(status, tuple(compare(self._dsn, self._place.files, TABLES)) if whole else None)

    def _finish(self) -> None:
        if not self._finishing:
            self._finishing = True
            self._end_workload()  # its last transaction is committed before the target is fixed
            self._supervisor.finish()

    def _end_workload(self) -> None:
        self._workload.stop()
        if self._workload.ident is not None:
            self._workload.join()

    def _signalled(self) -> None:
        """The first signal means: bring everything home. The next one does not wait for that."""
        if self._finishing:
            self._stopped = True
            self._supervisor.stop()
        else:
            self._finish()
