"""The process that a script runs in: QuickJS, with a limit on processor time, memory and wall time for each call.

It is started by path, imports nothing of Tailrace, and speaks with its parent over standard input and output. Some of
what a script can ask for ends at no limit of the engine's own (a search in long texts, digits of a long integer), so
the kernel ends the process at the wall time. An answer is a status and a text: "ok" with the script's answer, or
"error" with what QuickJS says. After an error the script gets a fresh engine. It ends when its standard input does.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import quickjs

LENGTHS = struct.Struct("<II")
"""The lengths of the two texts that a message consists of."""

LOAD_S = 2.0
"""How long a script may take until its functions are there."""
STACK_BYTES = 1 << 20
GRACE_S = 0.1
"""How long after its processor time a call is ended that the engine did not end."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent answers, and lets running work finish
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM, signal.SIGPROF))
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """The first message is a script and its limits, each that follows the two texts of a call."""
    first = _read(requests)
    if first is None:
        return
    script, limits = first[0], json.loads(first[1])
    context = None
    message: tuple[str, str] | None = None
    while True:
        try:
            if context is None:
                context = _loaded(script, limits)
            answer = ("ok", _called(context, message, limits) if message else "")
        except (quickjs.JSException, quickjs.StackOverflow) as error:
            answer = ("error", str(error))
            context = None
        finally:
            _alarm(0, 0)
        _write(answers, answer)
        message = _read(requests)
        if message is None:
            return


def _loaded(script: str, limits: dict[str, int]) -> quickjs.Context:
    _alarm(LOAD_S, LOAD_S)
    context = quickjs.Context()
    context.set_memory_limit(limits["mem_mb"] << 20)
    context.set_max_stack_size(STACK_BYTES)
    context.eval(Path(__file__).with_name("prelude.js").read_text())
    context.set_time_limit(LOAD_S)
    context.eval(script)
    if not context.eval("typeof processBatch === 'function'"):
        raise quickjs.JSException("AnswerError: the script has no function processBatch(events)\n")
    return context


def _called(context: quickjs.Context, message: tuple[str, str], limits: dict[str, int]) -> str:
    cpu_s = limits["cpu_ms"] / 1000
    context.set_time_limit(cpu_s)
    _alarm(limits["timeout_ms"] / 1000, cpu_s + GRACE_S)
    return str(context.get("tailrace_run")(*message))


def _alarm(wall_s: float, cpu_s: float) -> None:
    """After so long this process ends, whatever it does; 0: never."""
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _read(stream: BinaryIO) -> tuple[str, str] | None:
    head = stream.read(LENGTHS.size)
    if len(head) < LENGTHS.size:
        return None
    first, second = LENGTHS.unpack(head)
    return stream.read(first).decode(), stream.read(second).decode()


def _write(stream: BinaryIO, message: tuple[str, str]) -> None:
    first, second = (text.encode() for text in message)
    stream.write(LENGTHS.pack(len(first), len(second)) + first + second)
    stream.flush()


if __name__ == "__main__":
    main()
