"""The engines of a process: children that run scripts, kept for the next batch of the same script."""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ENGINE = Path(__file__).with_name("engine.py")
LENGTHS = struct.Struct("<II")
KEPT = 4
"""Idle engines that a process keeps, at most."""


@dataclass(frozen=True)
class Script:
    """A script and the limits of each call of it: `cpu_ms`, `mem_mb`, `timeout_ms`."""

    text: str
    limits: tuple[tuple[str, int], ...]


class EngineError(Exception):
    """What QuickJS says of a script that it cannot run, or that ran into an error or a limit."""


class EngineLostError(EngineError):
    """The child is gone, and no limit of its own has ended it."""


class Engine:
    """A child process with a script in it. Whoever gets an `EngineError` may call it again: what was left behind of the
    failed call is gone."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._child: subprocess.Popen[bytes] | None = None

    def load(self) -> None:
        """Start it, unless it runs. Raises `EngineError` for a script that cannot be loaded."""
        if self._child is not None:
            return
        # Without `-S` and with a path of its own it would import other modules than we would, or take longer.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-P", str(ENGINE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            self._exchange((self.script.text, json.dumps(dict(self.script.limits))))
        except EngineError:
            self.close()
            raise

    def call(self, meta: str, images: str) -> str:
        """The answer of `processBatch` to these events, as `prelude.js` writes it."""
        self.load()
        try:
            return self._exchange((meta, images))
        except EngineLostError:  # as by a machine that is short of memory, maybe long ago
            self.load()
            return self._exchange((meta, images))

    def close(self) -> None:
        """End it. It starts again when it is called."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for stream in (child.stdin, child.stdout):
                _closed(stream)
            child.wait()

    def _exchange(self, message: tuple[str, str]) -> str:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        try:
            first, second = (text.encode() for text in message)
            child.stdin.write(LENGTHS.pack(len(first), len(second)) + first + second)
            child.stdin.flush()
            lengths = LENGTHS.unpack(_exactly(child.stdout, LENGTHS.size))
            status, text = (_exactly(child.stdout, length).decode() for length in lengths)
        except (OSError, EOFError):
            raise self._ended() from None
        except BaseException:
            self.close()  # half an answer may be on its way
            raise
        if status == "error":
            raise EngineError(text)
        return text

    def _ended(self) -> EngineError:
        """Why the child is gone, as QuickJS would say it."""
        child = self._child
        assert child is not None
        status = child.wait()
        self.close()
        match -status:
            case signal.SIGALRM:
                return EngineError("InternalError: timeout\n")
            case signal.SIGPROF:
                return EngineError("InternalError: interrupted\n")
            case _:
                return EngineLostError(f"EngineLost: its engine ended with status {status}\n")


class Engines:
    """The idle engines of this process, for any thread. A forked process has none."""

    def __init__(self) -> None:
        self._idle: list[Engine] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.__init__)  # type: ignore[misc]
        atexit.register(self.close)

    def take(self, script: Script) -> Engine:
        """An engine with the script, for the caller alone until it puts it back."""
        with self._lock:
            found = next((each for each in self._idle if each.script == script), None)
            if found is not None:
                self._idle.remove(found)
        return found or Engine(script)

    def put_back(self, engine: Engine) -> None:
        with self._lock:
            self._idle.append(engine)
            surplus = self._idle[:-KEPT]
            del self._idle[:-KEPT]
        for each in surplus:
            each.close()

    def close(self) -> None:
        """End those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()


ENGINES = Engines()


def limits_of(limits: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(limits.items()))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found


def _closed(stream: IO[bytes] | None) -> None:
    if stream is not None:
        try:
            stream.close()
        except OSError:
            return  # what nobody reads any more
