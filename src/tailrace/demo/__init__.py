"""The demo: a shop in PostgreSQL, a workload on it, its changes in files, its tables in a lake, and the proof that all
are equal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.capture.postgres import PostgresSource
from tailrace.demo.place import DemoFolder, claim
from tailrace.demo.proof import TableProof, compare
from tailrace.demo.shop import TABLES, create_shop
from tailrace.demo.workload import ShopWorkload
from tailrace.errors import SetupError
from tailrace.supervisor.run import Supervisor
from tailrace.supervisor.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.supervisor.verify.report import TableReport

__all__ = ["TABLES", "Demo", "DemoFolder", "Outcome", "TableProof", "claim", "fetch_ahead"]


@dataclass(frozen=True)
class Outcome:
    """How a demo ended. `proofs`, of the files, is None when it was stopped before everything was delivered; `lake` is
    then empty."""

    status: Status
    proofs: tuple[TableProof, ...] | None
    lake: tuple[TableReport, ...] = ()

    @property
    def rows(self) -> int:
        return sum(proof.rows for proof in self.proofs or ())

    @property
    def unequal(self) -> tuple[str, ...]:
        """What is not as the source has it."""
        files = [
            f"the files of {each.table} differ in {each.differing} rows" for each in self.proofs or () if each.differing
        ]
        return (*files, *(f"the Delta table of {each.table}: {_said(each)}" for each in self.lake if not each.equal))


def fetch_ahead(place: DemoFolder) -> None:
    """Begin to fetch what Spark needs for the lake, so that it comes while the database starts. The run finds it, waits
    for it, or says why it cannot be had."""

    def fetch() -> None:
        from tailrace.sinks.delta import DeltaSink
        from tailrace.spark.libraries import settings_for

        with contextlib.suppress(SetupError):
            settings_for([DeltaSink(id="lake", path=str(place.lake))])

    threading.Thread(target=fetch, name="fetch-ahead", daemon=True).start()


class Demo:
    """One run on the database at `dsn`, which is the demo's own. `tell` gets what it is about to do, in a few words."""

    def __init__(
        self, place: DemoFolder, dsn: str, *, rate: float, tell: Callable[[str], None] = lambda step: None
    ) -> None:
        create_shop(dsn)
        self._tell = tell
        self._place, self._dsn = place, dsn
        self._pipeline, self._platform = pipeline, platform = place.documents(dsn)
        assert isinstance(pipeline.source, PostgresSource)
        self._supervisor = Supervisor([pipeline], platform)
        self._lake: tuple[TableReport, ...] = ()
        self._workload = ShopWorkload(dsn, pipeline.source.slot_name, rate=rate)
        self._finishing = self._stopped = self._end_told = False

    def run(self, seconds: float | None, on_tick: Callable[[Status], None]) -> Outcome:
        """Until a signal, or after `seconds` of changes. Then the workload ends, what it did is delivered,
        and files, lake and source are compared. A second signal does not wait for the delivery."""

        def tick(status: Status) -> None:
            on_tick(status)
            if all(sink.state in ("stopped", "expired", "failed") for sink in status.sinks):
                return  # the last look, after the end
            self._tell_of_end()
            idle = self._workload.ident is None and not self._finishing
            if idle and all(sink.state == "running" for sink in status.sinks):
                self._workload.start()
            began = self._workload.began
            over = seconds is not None and began is not None and time.monotonic() >= began + seconds
            if over or self._workload.error is not None:
                self._finish()

        try:
            status = self._supervisor.run(on_tick=tick, on_signal=self._signalled, at_end=self._compare_lake)
        finally:
            self._end_workload()
        if self._workload.error is not None:
            raise self._workload.error
        whole = self._finishing and not self._stopped
        if not whole:
            return Outcome(status, None)
        self._tell("comparing the files with the shop")
        return Outcome(status, tuple(compare(self._dsn, self._place.files, TABLES)), self._lake)

    def _compare_lake(self, spark: SparkSession) -> None:
        """As `tailrace verify` does, in the session that is there."""
        from tailrace.supervisor.verify import Verification, VerifyOptions

        self._tell("comparing the Delta tables with the shop")
        self._lake = tuple(Verification(self._pipeline, self._platform, VerifyOptions()).compare(spark))

    def _tell_of_end(self) -> None:
        """Not where a signal is answered: that may be in the midst of another line."""
        if self._finishing and not self._end_told:
            self._end_told = True
            self._tell("delivering what is left")

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


def _said(report: TableReport) -> str:
    return report.problem or f"{report.differing + report.unsettled} rows differ"
