"""Where the time goes: Python functions by py-spy, threads by /proc. Only with --profile."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.meter import thread_cpu_s
from tailrace.errors import SetupError

RATE_HZ = 200
TOP = 25
_LEAST = 0.005


class Profiler:
    """Watches processes while they are measured, if it is `on`. Results are shares of their CPU time."""

    def __init__(self, folder: Path, on: bool) -> None:
        self._folder, self._on = folder, on
        self.shares: dict[str, dict[str, float]] = {}
        if on and shutil.which("py-spy") is None:
            raise SetupError("environment.py_spy", "--profile needs py-spy", hint="pip install py-spy")

    @contextmanager
    def of(self, name: str, pids: Iterable[int]) -> Iterator[None]:
        """The Python functions (function and line that ran) of some processes of one role."""
        outputs = [self._folder / f"{name} {pid}.profile" for pid in pids] if self._on else []
        spies = [_spy(output, int(output.stem.split()[-1])) for output in outputs]
        try:
            yield
        finally:
            for spy in spies:
                spy.send_signal(signal.SIGINT)
            for spy in spies:
                spy.wait(60)
        if outputs:
            self.shares[f"{name}: functions"] = _functions(output for output in outputs if output.exists())

    @contextmanager
    def threads(self, name: str, pid: int) -> Iterator[None]:
        """The threads of `pid`, by name."""
        before = thread_cpu_s(pid) if self._on else {}
        yield
        if self._on:
            spent = {thread: cpu - before.get(thread, 0.0) for thread, cpu in thread_cpu_s(pid).items()}
            self.shares[f"{name}: threads"] = _shares(spent)


def _spy(output: Path, pid: int) -> subprocess.Popen[bytes]:
    command = ["py-spy", "record", "--pid", str(pid), "--output", str(output), "--format", "raw"]
    command += ["--rate", str(RATE_HZ), "--nonblocking", "--duration", "36000"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _functions(outputs: Iterable[Path]) -> dict[str, float]:
    found: Counter[str] = Counter()
    for line in (line for output in outputs for line in output.read_text().splitlines()):
        stack, _, count = line.rpartition(" ")
        found[stack.rsplit(";", 1)[-1]] += int(count)
    return _shares(dict(found))


def _shares(spent: dict[str, float]) -> dict[str, float]:
    total = sum(spent.values()) or 1.0
    ranked = sorted(spent.items(), key=lambda item: -item[1])[:TOP]
    return {name: round(value / total, 4) for name, value in ranked if value / total >= _LEAST}
