"""What a measurement cost: CPU-seconds and memory of each role, and how busy the machine was with other work.

A role is given to a process by its pid; its children have the same one, except that the JVM below a driver is
`spark jvm` and everything below that JVM is `spark workers`. All is read from /proc, which counts in
hundredths of a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SAMPLE_S = 0.05
SAMPLES_PER_SEARCH = 10
"""New processes are looked for this seldom: it means reading all of /proc."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM = 1, 11, 12
_BUSY = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq, steal in the first line of /proc/stat."""


@dataclass(frozen=True)
class Usage:
    """Of one measurement. `peak_mib` is the largest process of the role, at its largest since it started;
    `other_cores` is how many cores were busy with work that is not ours."""

    wall_s: float
    cpu_s: dict[str, float]
    peak_mib: dict[str, float]
    other_cores: float


class Meter:
    """Measures while it is entered. `roles` names processes by pid; this process is `bench`."""

    def __init__(self, roles: Mapping[int, str]) -> None:
        self._named = {os.getpid(): "bench", **roles}
        self._roles: dict[int, str] = {}
        self._first: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self._peak: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._search()
        self._first = dict(self._cpu)
        self._busy = _machine_busy_s()
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wall = time.monotonic() - self._began
        self._over.set()
        self._thread.join()
        self._search()
        self._busy = _machine_busy_s() - self._busy

    def usage(self) -> Usage:
        cpu: dict[str, float] = {}
        peak: dict[str, float] = {}
        for pid, role in self._roles.items():
            cpu[role] = cpu.get(role, 0.0) + self._cpu[pid] - self._first.get(pid, 0.0)
            peak[role] = max(peak.get(role, 0.0), self._peak.get(pid, 0.0))
        other = max(0.0, self._busy - sum(cpu.values())) / self._wall
        rounded = {role: round(seconds, 2) for role, seconds in sorted(cpu.items())}
        return Usage(self._wall, rounded, {role: round(peak[role], 1) for role in rounded}, round(other, 2))

    def _sample(self) -> None:
        count = 0
        while not self._over.wait(SAMPLE_S):
            count += 1
            if count % SAMPLES_PER_SEARCH == 0:
                self._search()
            else:
                self._look(list(self._roles))

    def _search(self) -> None:
        for pid, role in family(self._named):
            self._roles.setdefault(pid, role)
        self._look(list(self._roles))
        for pid in self._roles:
            with suppress(OSError, ValueError):
                self._peak[pid] = _peak_mib(pid)

    def _look(self, pids: list[int]) -> None:
        for pid in pids:
            fields = _stat(Path(f"/proc/{pid}"))
            if fields:
                self._cpu[pid] = _cpu_s(fields)
            self._cpu.setdefault(pid, 0.0)


def family(named: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """This process and all below it, each with its role."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(entry)
        if fields:
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    waiting = [(os.getpid(), "bench")]
    while waiting:
        pid, inherited = waiting.pop()
        role = named.get(pid) or _below(inherited, pid)
        yield pid, role
        waiting += [(child, role) for child in children.get(pid, ())]


def proportional_mib(pids: Iterable[int]) -> float:
    """Memory of processes together, where a page that several share counts once (PSS)."""
    return sum(map(_pss_mib, pids))


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU-seconds by thread name, numbers in names left out."""
    spent: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        fields = _stat(task)
        if fields:
            name = (task / "comm").read_text().strip().rstrip("0123456789#-")
            spent[name] = spent.get(name, 0.0) + _cpu_s(fields)
    return spent


def _below(role: str, pid: int) -> str:
    if role == "spark jvm":
        return "spark workers"
    with suppress(OSError):
        if role == "driver" and Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return "spark jvm"
    return role


def _stat(folder: Path) -> list[str]:
    """The fields of a stat file from the state on; empty when the process is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(fields: list[str]) -> float:
    return (int(fields[_USER]) + int(fields[_SYSTEM])) * _TICK_S


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _pss_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _machine_busy_s() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY) * _TICK_S
