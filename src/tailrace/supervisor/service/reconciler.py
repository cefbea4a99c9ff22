"""Actual state follows desired state: pipelines are held, their taps and runtimes started, watched and ended.

Everything here happens in steps of one thread, and each step looks at the whole: what was missed, or lost with a
process, is put right by the next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.errors import Action, TailraceError, decide
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout, run_lock
from tailrace.supervisor.run.subscriptions import settle_subscribers
from tailrace.supervisor.runtime import Assignment, Generation, SnapshotReport
from tailrace.supervisor.runtime.libraries import PLAIN, runtime_of
from tailrace.supervisor.runtime.process import RuntimeProcess
from tailrace.supervisor.service.states import Finding, Parts, PipelineView, StallWatch, state_of
from tailrace.supervisor.service.taps import Taps
from tailrace.supervisor.service.wishes import Wish
from tailrace.supervisor.status import TapStatus

TICK_S = 0.25
IDLE_S = 60.0
"""A runtime that carries nothing for so long is ended; the next pipeline starts another."""
AGAIN_S = 5.0
"""How soon a pipeline that could not begin is tried again."""
QUIET_S = 5.0
"""A runtime that has not reported for this long is not said to work."""


@dataclass
class _Held:
    """A pipeline that this server runs, of one generation. Nobody else runs it while `lock` is held."""

    wish: Wish
    pipeline: Pipeline
    lock: contextlib.ExitStack
    runtime: str
    notices: tuple[str, ...]
    stalls: StallWatch = field(default_factory=StallWatch)


@dataclass(frozen=True)
class _Refusal:
    generation: Generation
    finding: Finding
    at: float


class Reconciler:
    """`wishes` tells what shall be; `on_view` hears of each pipeline whenever what it is has changed."""

    def __init__(
        self,
        platform: Platform,
        wishes: Callable[[], Sequence[Wish]],
        on_view: Callable[[PipelineView], None] = lambda view: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._platform, self._wishes, self._on_view, self._clock = platform, wishes, on_view, clock
        self._layout = Layout.of(platform)
        self._taps = Taps(platform, clock)
        self._held: dict[str, _Held] = {}
        self._refused: dict[str, _Refusal] = {}
        self._runtimes: dict[str, RuntimeProcess] = {}
        self._retired: list[RuntimeProcess] = []
        self._idle_since: dict[str, float] = {}
        self._readers: dict[str, str] = {}
        """Which runtime reads the snapshots of a source."""
        self._views: dict[str, PipelineView] = {}
        self._woken = threading.Event()
        self._ending = threading.Event()

    # -- what others see -----------------------------------------------------------------------------------------

    def view(self, name: str) -> PipelineView | None:
        return self._views.get(name)

    def views(self) -> list[PipelineView]:
        return [view for _, view in sorted(self._views.items())]

    def wake(self) -> None:
        """Look now: something was wished."""
        self._woken.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self, drain_s: float) -> None:
        """Until `end`; then everything is drained, for at most so long."""
        while not self._ending.is_set():
            with _patience():
                self.step(self._wishes())
            self._woken.wait(TICK_S)
            self._woken.clear()
        self._drain(self._clock() + drain_s)

    def end(self) -> None:
        self._ending.set()
        self._woken.set()

    def step(self, wishes: Sequence[Wish]) -> None:
        """One look at everything."""
        wanted = {wish.name: wish for wish in wishes}
        for name in list(self._held):
            self._let_go_unless_wanted(name, wanted.get(name))
        for wish in wishes:
            self._hold_if_wanted(wish)
        self._taps.settle(held.pipeline for held in self._held.values())
        for held in self._held.values():
            self._taps.note(held.pipeline.source_id, held.notices)
        self._taps.tick()
        self._order()
        self._tend_runtimes()
        self._look(wanted)

    def _drain(self, deadline: float) -> None:
        while self._clock() < deadline and (self._held or not self._taps.none_left):
            self.step(())
            time.sleep(TICK_S)
        for runtime in self._runtimes.values():
            runtime.end()
        self._retired += self._runtimes.values()
        while self._clock() < deadline and not all(runtime.has_ended for runtime in self._retired):
            time.sleep(TICK_S)
        for runtime in self._retired:
            runtime.kill()
        self._taps.kill()
        for held in self._held.values():
            held.lock.close()

    # -- holding -------------------------------------------------------------------------------------------------

    def _let_go_unless_wanted(self, name: str, wish: Wish | None) -> None:
        held = self._held[name]
        if wish is not None and wish.generation == held.wish.generation and wish.desired != "stopped":
            held.wish = wish
            return
        runtime = self._runtimes.get(held.runtime)
        held.wish = Wish(name, held.wish.generation, "stopped")
        if runtime is None or runtime.has_left(name):
            held.lock.close()
            del self._held[name]

    def _hold_if_wanted(self, wish: Wish) -> None:
        if wish.name in self._held or wish.desired == "stopped":
            return
        known = self._refused.get(wish.name)
        if known is not None and known.generation == wish.generation and self._clock() - known.at < AGAIN_S:
            return
        try:
            self._held[wish.name] = self._hold(wish)
            self._refused.pop(wish.name, None)
        except TailraceError as error:
            finding = Finding("document", "failed", error.code, error.message, error.hint)
            self._refused[wish.name] = _Refusal(wish.generation, finding, self._clock())

    def _hold(self, wish: Wish) -> _Held:
        if wish.error is not None or wish.pipeline is None:
            raise wish.error or AssertionError("a wish without a pipeline has an error")
        pipeline = wish.pipeline
        self._layout.refuse_lost_store()
        self._taps.refuse_other(pipeline)
        runtime, sinks = runtime_of(pipeline)
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_lock(self._layout, pipeline.name))
            notices = settle_subscribers(pipeline, self._layout)  # before its tap starts
            self._taps.revive(pipeline.source_id)
            if runtime not in self._runtimes:
                self._runtimes[runtime] = RuntimeProcess(runtime, sinks, self._platform, self._clock)
            return _Held(wish, pipeline, stack.pop_all(), runtime, notices)

    # -- runtimes ------------------------------------------------------------------------------------------------

    def _order(self) -> None:
        carried = {name: held for name, held in self._held.items() if held.wish.desired == "running"}
        self._choose_readers(carried)
        for name, runtime in self._runtimes.items():
            mine = {each: held for each, held in carried.items() if held.runtime == name}
            pipelines = {each: Assignment(held.wish.generation, held.pipeline) for each, held in mine.items()}
            sources = {held.pipeline.source_id for held in mine.values()}
            snapshots = frozenset(source for source in sources if self._readers.get(source) == name)
            runtime.order(pipelines, snapshots)

    def _choose_readers(self, carried: Mapping[str, _Held]) -> None:
        """A source's snapshots are read by one runtime that carries it: where it can, the one that did."""
        choices: dict[str, set[str]] = {}
        for held in carried.values():
            choices.setdefault(held.pipeline.source_id, set()).add(held.runtime)
        self._readers = {
            source: self._readers[source] if self._readers.get(source) in among else _first(among)
            for source, among in choices.items()
        }

    def _tend_runtimes(self) -> None:
        for name, runtime in list(self._runtimes.items()):
            if not runtime.is_idle or any(held.runtime == name for held in self._held.values()):
                self._idle_since.pop(name, None)
                runtime.tick()
            elif self._clock() - self._idle_since.setdefault(name, self._clock()) > IDLE_S:
                self._idle_since.pop(name)
                runtime.end()
                self._retired.append(self._runtimes.pop(name))
        self._retired = [runtime for runtime in self._retired if not runtime.has_ended]

    # -- looking -------------------------------------------------------------------------------------------------

    def _look(self, wanted: Mapping[str, Wish]) -> None:
        taps = self._taps.status()
        views = {}
        for name in wanted.keys() | self._held.keys():
            before, now = self._views.get(name), self._view(name, wanted.get(name), taps)
            views[name] = now
            if before is None or (before.state, before.findings) != (now.state, now.findings):
                self._on_view(now)
        self._views = views

    def _view(self, name: str, wish: Wish | None, taps: Mapping[str, TapStatus]) -> PipelineView:
        held = self._held.get(name)
        wish = wish or (held.wish if held is not None else None)
        assert wish is not None
        runtime = self._runtimes.get(held.runtime) if held is not None else None
        carried = None if runtime is None else runtime.report.pipelines.get(name)
        tap = None if held is None else taps.get(held.pipeline.source_id)
        parts = self._parts(wish, held, runtime, tap)
        stalled = {} if held is None else held.stalls.look(parts.sinks)
        state, findings = state_of(parts, stalled)
        known = self._views.get(name)
        since = known.since if known is not None and known.state == state else time.time()
        committed = None if carried is None else carried.committed
        letters = () if carried is None else carried.letters
        return PipelineView(
            name,
            wish.generation,
            wish.desired,
            state,
            since,
            tuple(findings),
            parts.tap,
            parts.sinks,
            parts.snapshots,
            committed,
            letters,
        )

    def _reading(self, held: _Held | None) -> SnapshotReport:
        if held is None:
            return SnapshotReport()
        source = held.pipeline.source_id
        runtime = self._runtimes.get(self._readers.get(source, ""))
        return SnapshotReport() if runtime is None else runtime.report.snapshots.get(source, SnapshotReport())

    def _parts(
        self,
        wish: Wish,
        held: _Held | None,
        runtime: RuntimeProcess | None,
        tap: TapStatus | None,
    ) -> Parts:
        carried = None if runtime is None else runtime.report.pipelines.get(wish.name)
        reading = self._reading(held)
        refusal = self._refused.get(wish.name)
        refused = refusal.finding if refusal is not None and held is None and wish.desired != "stopped" else None
        if carried is not None and carried.error is not None:
            error = carried.error
            refused = Finding("document", "failed", error["code"], error["message"], error["hint"])
        if held is None:
            return Parts(wish.desired, False, False, refused=refused)
        return Parts(
            wish.desired,
            True,
            carried is not None,
            tap,
            () if carried is None else carried.sinks,
            frozenset(sink.id for sink in held.pipeline.sinks if not sink.required),
            reading.tables,
            reading.errors,
            refused,
            _of_runtime(runtime) if wish.desired == "running" else None,
        )


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """A store that is away is asked again; what runs goes on meanwhile."""
    try:
        yield
    except TailraceError as error:
        if decide(error) is not Action.RETRY:
            raise


def _of_runtime(runtime: RuntimeProcess | None) -> Finding | None:
    if runtime is None:
        return None
    age = runtime.age_s
    if age is None and runtime.failure is not None:
        failure = runtime.failure
        return Finding("runtime", "degraded", failure.code, failure.message, failure.hint)
    if age is not None and runtime.report.ready and age > QUIET_S:
        hint = "it is busy or hangs; if that lasts, it is ended and started again"
        return Finding("runtime", "degraded", "runtime.quiet", f"its runtime has said nothing for {age:.0f} s", hint)
    return None


def _first(among: set[str]) -> str:
    return PLAIN if PLAIN in among else min(among)
