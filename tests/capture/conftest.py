"""What capture tests share: databases of their own, captures that run in a thread, taps that run as processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Database, TapProcess


@pytest.fixture
def database(postgres_server: Callable[[int], PostgresServer]) -> Iterator[Callable[..., Database]]:
    """`database(major)`: an empty database on the shared server of that version, gone after the test."""
    with ExitStack() as made:
        yield lambda major=18: made.enter_context(Database(postgres_server(major)))


@pytest.fixture
def db(database: Callable[..., Database]) -> Database:
    return database()


@pytest.fixture
def capturing(tmp_path: Path) -> Iterator[Callable[..., Capturing]]:
    """`capturing(db, **settings)`: a running capture of `public.*` into the test's log; stopped after the test."""
    with ExitStack() as started:
        yield lambda db, **settings: started.enter_context(Capturing(db, tmp_path / "log", **settings))


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[Callable[..., TapProcess]]:
    """`tap(db, **settings)`: a tap as a process on the test's log; killed after the test if it still runs."""
    with ExitStack() as started:
        yield lambda db, **settings: started.enter_context(TapProcess(db, tmp_path, **settings))
