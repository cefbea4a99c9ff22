"""Running pipelines: one tap per source, one Spark session, one query per sink, until told to stop."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.changelog import Awaited, Owner
from tailrace.errors import Action, TailraceError, decide, located, together
from tailrace.machine import signals
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout, run_lock
from tailrace.supervisor.run.subscriptions import awaited, settle_subscribers
from tailrace.supervisor.run.taps import TapProcess
from tailrace.supervisor.status import PipelineStatus, SinkStatus, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.supervisor.run.deliveries import SinkRunner
    from tailrace.supervisor.run.letters import LetterWatch
    from tailrace.supervisor.snapshots import SnapshotThread

TICK_S, FINISHING_TICK_S = 0.5, 0.2
"""How often the run looks around; sooner where it only waits for the end."""
TAP_DRAIN_S = 20.0


class Supervisor:
    """Pipelines of one process. `run` blocks; `finish` and `stop` may be called from its `on_tick` or a signal."""

    def __init__(self, pipelines: Sequence[Pipeline], platform: Platform) -> None:
        self._pipelines = list(pipelines)
        self._platform = platform
        self._layout = Layout.of(platform)
        self._started = time.time()
        self._stopping = threading.Event()
        self._positions: dict[str, str] = {}
        self._targets: dict[str, int] = {}
        self._finishing = False
        sources = {pipeline.source_id: pipeline for pipeline in pipelines}
        self._taps = {
            name: TapProcess(pipeline.spec.source.type, pipeline.source, platform, self._acknowledging(name))
            for name, pipeline in sources.items()
        }
        self._runners: list[SinkRunner] = []
        self._letters: list[LetterWatch] = []
        self._snapshots: dict[str, SnapshotThread] = {}

    def run(
        self,
        *,
        until_caught_up: bool = False,
        seconds: float | None = None,
        on_tick: Callable[[Status], None] = lambda status: None,
        on_signal: Callable[[], None] | None = None,
        at_end: Callable[[SparkSession], None] = lambda spark: None,
    ) -> Status:
        """Run until `stop`, a signal, `seconds`, or until everything committed at the source when `finish` was
        called is delivered. Returns the last status; raises the errors of all that stopped for good, as one.

        SIGINT, SIGTERM and SIGHUP drain, unless `on_signal` does something else about them. `at_end` is called once all
        of it is delivered, while taps, queries and Spark still run."""
        answer = on_signal or self.stop
        with self._locks(), signals.answered(lambda number: self._signalled(number, answer)):
            try:
                self._start()
                if until_caught_up:
                    self.finish()
                if self._loop(seconds, on_tick) and self._failure() is None:
                    at_end(self._spark)
            finally:
                self._shut_down()
        status = self.status()
        on_tick(status)
        self._raise_failure()
        return status

    def finish(self) -> None:
        """From now on: deliver what is committed at the sources by now, then end."""
        self._finishing = True

    def stop(self) -> None:
        """Drain: finish the batches that run, then end. What is not delivered stays in the log."""
        self._stopping.set()

    def status(self) -> Status:
        taps = {name: tap.status() for name, tap in self._taps.items()}
        for name, thread in self._snapshots.items():
            taps[name] = replace(taps[name], warnings=taps[name].warnings + thread.warnings())
        sinks = tuple(runner.status(taps[runner.source_id].head) for runner in self._runners)
        reading = tuple(each for thread in self._snapshots.values() for each in thread.status())
        pipelines = tuple(pipeline_status(pipeline, sinks) for pipeline in self._pipelines)
        letters = tuple(each.status() for each in self._letters)
        return Status(self._started, time.time(), tuple(taps.values()), sinks, reading, pipelines, letters)

    def _acknowledging(self, source: str) -> list[Awaited]:
        """Of the pipelines that read `source`: those whose deliveries it waits for before it hears of them."""
        reading = [each for each in self._pipelines if each.source_id == source]
        return [awaited(each) for each in reading if each.spec.commit_policy.ack == "sinks"]

    # -- the run ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._layout.refuse_lost_store()
        for pipeline in self._pipelines:
            self._taps[pipeline.source_id].notices += settle_subscribers(pipeline, self._layout)
        for tap in self._taps.values():
            tap.start()  # first: it decodes while Spark's JVM comes up
        from tailrace.spark.libraries import open_for
        from tailrace.supervisor.run.carried import CarriedPipeline
        from tailrace.supervisor.snapshots import start_snapshots

        port = self._platform.ports.spark_ui
        ui = {"spark.ui.enabled": "true", "spark.ui.port": str(port)} if port else {}
        sinks = [sink for pipeline in self._pipelines for sink in pipeline.sinks]
        self._spark = open_for(sinks, self._platform.spark, self._layout.spark_log, ui)
        for pipeline in self._pipelines:
            carried = CarriedPipeline(self._spark, pipeline, self._platform)
            self._letters += [] if carried.letters is None else [carried.letters]
            self._runners += carried.runners
            carried.start()
        for name, tap in self._taps.items():
            self._snapshots[name] = thread = start_snapshots(
                self._spark, tap.source, tap.is_streaming, self._layout, self._platform
            )
            thread.start()

    def _loop(self, seconds: float | None, on_tick: Callable[[Status], None]) -> bool:
        """Whether it ended because everything is delivered."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._stopping.is_set():
            for tap in self._taps.values():
                tap.tick()
            on_tick(self.status())
            over = deadline is not None and time.monotonic() >= deadline
            if over or self._nothing_left():
                return False
            if self._finishing and self._is_finished():
                return True
            self._stopping.wait(FINISHING_TICK_S if self._finishing else TICK_S)
        return False

    def _dead(self) -> set[str]:
        """Sources whose tap or snapshot has stopped for good."""
        dead = {name for name, tap in self._taps.items() if tap.failure is not None}
        return dead | {name for name, thread in self._snapshots.items() if thread.failure is not None}

    def _nothing_left(self) -> bool:
        """Every sink has stopped for good, or cannot get on because its source has."""
        dead = self._dead()
        return all(runner.failure is not None or runner.source_id in dead for runner in self._runners)

    def _is_finished(self) -> bool:
        """Wait for snapshots, then fix each source's position once, then each log's target once, then wait for the
        sinks. What has stopped for good is not waited for."""
        if any(thread.busy for thread in self._snapshots.values()):
            return False
        for name, tap in self._taps.items():
            self._fix_position(name, tap)
            reached = name in self._positions and tap.caught_up_with(self._positions[name])
            head = tap.head() if reached and name not in self._targets else None
            if head is not None:
                self._targets[name] = head
                for runner in self._runners:
                    if runner.source_id == name:
                        runner.until(self._targets[name])
        dead = self._dead()
        return all(
            runner.failure is not None
            or runner.source_id in dead
            or (runner.source_id in self._targets and runner.offset() >= self._targets[runner.source_id])
            for runner in self._runners
        )

    def _fix_position(self, name: str, tap: TapProcess) -> None:
        """Ask the source, once it can be asked: an outage is waited for."""
        if name in self._positions or not tap.is_streaming():
            return
        try:
            self._positions[name] = tap.source.current_position()  # type: ignore[attr-defined]
        except TailraceError as error:
            if decide(error) is not Action.RETRY:
                raise

    def _shut_down(self) -> None:
        for thread in self._snapshots.values():
            thread.stop()
        for runner in self._runners:
            runner.drain()
        for tap in self._taps.values():
            if not tap.stop(TAP_DRAIN_S):
                tap.kill()
        for each in (*self._runners, *self._snapshots.values()):
            each.join()
        if hasattr(self, "_spark"):
            with contextlib.suppress(Exception):  # a JVM that is already gone has nothing to stop
                self._spark.stop()

    def _raise_failure(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise failure

    def _failure(self) -> TailraceError | None:
        """What stopped for good, as one error."""
        found: list[tuple[str, TailraceError | None]] = [
            (f"tap {name}", tap.failure) for name, tap in self._taps.items()
        ]
        found += [(f"sink {runner.pipeline}/{runner.sink.id}", runner.failure) for runner in self._runners]
        found += [(f"snapshot {name}", each) for name, thread in self._snapshots.items() for each in thread.failures]
        return together([located(error, where) for where, error in found if error is not None])

    @contextlib.contextmanager
    def _locks(self) -> Iterator[None]:
        """One process per pipeline: two would fight for its checkpoints."""
        with contextlib.ExitStack() as stack:
            for pipeline in self._pipelines:
                stack.enter_context(run_lock(self._layout, pipeline.name))
            yield

    def _signalled(self, number: int, answer: Callable[[], None]) -> None:
        """A signal; where the run drains already it ends at once, which loses nothing either (Law 7)."""
        if self._stopping.is_set():
            os._exit(128 + number)
        answer()


def pipeline_status(pipeline: Pipeline, sinks: Sequence[SinkStatus]) -> PipelineStatus:
    """How far a pipeline is, by what its sinks have delivered."""
    offsets = {
        Owner(each.pipeline, each.sink).name: each.offset
        for each in sinks
        if each.pipeline == pipeline.name and each.offset is not None
    }
    policy = pipeline.spec.commit_policy
    return PipelineStatus(pipeline.name, policy.mode, awaited(pipeline).committed(offsets) if offsets else None)
