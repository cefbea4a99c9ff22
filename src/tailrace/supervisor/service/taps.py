"""The taps of a server: one for each source that a held pipeline reads, whoever carries it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrace.changelog import Awaited
from tailrace.config import Model
from tailrace.errors import ConfigError
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.run.subscriptions import awaited
from tailrace.supervisor.run.taps import TapProcess
from tailrace.supervisor.status import TapStatus

DRAIN_S = 20.0
"""How long a tap may take to end before it is ended, which loses nothing (Law 7)."""


@dataclass(frozen=True)
class _Task:
    """What a tap is started for: another one is another process."""

    source: Model
    awaited: tuple[Awaited, ...]


class Taps:
    """`settle` says who reads; `tick` keeps the taps alive, and ends those that nobody needs."""

    def __init__(self, platform: Platform, clock: Callable[[], float] = time.monotonic) -> None:
        self._platform, self._clock = platform, clock
        self._running: dict[str, tuple[_Task, TapProcess]] = {}
        self._ending: dict[str, tuple[TapProcess, float]] = {}

    def refuse_other(self, pipeline: Pipeline) -> None:
        """Raise `config.source_conflict` where another pipeline reads a source of this id that is configured
        otherwise."""
        known = self._running.get(pipeline.source_id)
        if known is not None and known[0].source != pipeline.source:
            raise ConfigError(
                "config.source_conflict",
                f"the source '{pipeline.source_id}' is configured otherwise in another pipeline that runs",
                hint="make both equal, to share one tap and log, or give one another id",
                where="spec.source.config",
            )

    def settle(self, pipelines: Iterable[Pipeline]) -> None:
        """These read, and nobody else."""
        readers: dict[str, list[Pipeline]] = {}
        for pipeline in pipelines:
            readers.setdefault(pipeline.source_id, []).append(pipeline)
        for source in [name for name in self._running if name not in readers]:
            self._end(source)
        for source, reading in readers.items():
            task = _Task(reading[0].source, _acknowledging(reading))
            if source in self._running and self._running[source][0] != task:
                self._end(source)
            if source not in self._running and source not in self._ending:
                tap = TapProcess(reading[0].spec.source.type, task.source, self._platform, task.awaited)
                self._running[source] = (task, tap)
                tap.start()

    def revive(self, source: str) -> None:
        """Start a tap that had stopped for good once more: somebody asks for it."""
        known = self._running.get(source)
        if known is not None and known[1].failure is not None:
            self._end(source)

    def note(self, source: str, notices: Sequence[str]) -> None:
        """What is to be told with the tap's warnings."""
        known = self._running.get(source)
        if known is not None:
            known[1].notices = tuple(dict.fromkeys((*known[1].notices, *notices)))

    def tick(self) -> None:
        for _, tap in self._running.values():
            tap.tick()
        for source, (tap, since) in list(self._ending.items()):
            if tap.has_ended:
                del self._ending[source]
            elif self._clock() - since > DRAIN_S:
                tap.kill()

    def status(self) -> dict[str, TapStatus]:
        return {source: tap.status() for source, (_, tap) in self._running.items()}

    @property
    def none_left(self) -> bool:
        return not self._running and not self._ending

    def kill(self) -> None:
        for tap in (*(each for _, each in self._running.values()), *(each for each, _ in self._ending.values())):
            tap.kill()

    def _end(self, source: str) -> None:
        _, tap = self._running.pop(source)
        tap.stop(0.0)
        self._ending[source] = (tap, self._clock())


def _acknowledging(pipelines: Iterable[Pipeline]) -> tuple[Awaited, ...]:
    """Those whose deliveries the source waits for before it hears of them."""
    return tuple(awaited(each) for each in pipelines if each.spec.commit_policy.ack == "sinks")
