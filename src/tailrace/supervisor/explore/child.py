"""A chain with code of the user's, or over frames, in a process of its own: what it does to a process, how long it
takes and what it prints are then nothing to whoever looks."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import pyarrow as pa

from tailrace.contracts import BatchProcessor, Place, Processor
from tailrace.errors import ProcessorError, TailraceError
from tailrace.machine import lifeline
from tailrace.processors.frames import FrameProcessor
from tailrace.processors.user_code import UserCode
from tailrace.supervisor.explore.passing import Passing, Seen, Tables
from tailrace.supervisor.trial.frames import local_spark

START_S = 300.0
"""How long the process may take to start, which Spark does in it where a processor wants frames."""


def needs_child(processors: Sequence[Processor]) -> bool:
    return any(
        not isinstance(each, BatchProcessor) or isinstance(each, UserCode) or each.user_code for each in processors
    )


class TooLate(Exception):
    """It did not answer in time, and was ended."""


class ChildPassing:
    """As `Passing`, in a process that starts when it is first asked. It ends with `close`, and with this process."""

    def __init__(self, place: Place, processors: Sequence[Processor]) -> None:
        self._place, self._processors = replace(place, set_aside=None), tuple(processors)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._sent: frozenset[int] = frozenset()

    def start(self) -> None:
        """Returns when it is ready. Raises `processor.failed` where it cannot be."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self._place, self._processors, os.getpid())
        self._process = context.Process(target=_serve, args=arguments, name="tailrace-explore")
        self._process.start()
        theirs.close()
        try:
            self._answer(START_S)
        except TooLate:
            raise _lost(f"did not start within {START_S:g} s") from None

    def __call__(self, changes: pa.RecordBatch, tables: Tables, seconds: float) -> Seen:
        """Raises `TooLate`."""
        self.start()
        assert self._connection is not None
        news = tables if self._sent != tables.keys() else None
        self._sent = frozenset(tables)
        self._connection.send((changes, news))
        found = self._answer(seconds)
        assert isinstance(found, Seen)
        return found

    def close(self) -> None:
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        self._sent = frozenset()
        if process is not None and connection is not None:
            connection.close()
            process.kill()
            process.join()

    def _answer(self, seconds: float) -> Seen | None:
        assert self._connection is not None
        try:
            if not self._connection.poll(max(seconds, 0.0)):
                self.close()
                raise TooLate
            found: Seen | TailraceError | None = self._connection.recv()
        except (EOFError, OSError):
            self.close()
            raise _lost("ended the process that it ran in") from None
        if isinstance(found, TailraceError):
            raise found
        return found


def _serve(connection: Connection, place: Place, processors: tuple[Processor, ...], parent: int) -> None:
    lifeline.hold(parent)
    os.dup2(2, 1)  # what code of the user's prints is no answer
    sys.stdout = sys.stderr
    passing = Passing(place, processors)
    tables: Tables = {}
    try:
        connection.send(_ready(processors))
        while True:
            changes, news = connection.recv()
            tables = tables if news is None else news
            connection.send(_answered(passing, changes, tables))
    except (EOFError, BrokenPipeError):
        return


def _ready(processors: Sequence[Processor]) -> TailraceError | None:
    """Once Spark is there, where it is needed."""
    try:
        if any(isinstance(each, FrameProcessor) for each in processors):
            local_spark()
    except TailraceError as error:
        return error
    return None


def _answered(passing: Passing, changes: pa.RecordBatch, tables: Tables) -> Seen | TailraceError:
    try:
        return passing(changes, tables)
    except TailraceError as error:
        return error


def _lost(what: str) -> ProcessorError:
    hint = "try the chain out with tailrace test, or look at what the source sent: --raw"
    return ProcessorError("processor.failed", f"a processor before the sink {what}", hint=hint)
