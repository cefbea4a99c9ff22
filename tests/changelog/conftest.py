"""A log in a temporary folder, and how tests look at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tailrace.changelog import LogWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def write(path: Path) -> Iterator[Callable[..., LogWriter]]:
    """`write(**settings)`: the log's writer; closed at the end of the test unless the test did."""
    with ExitStack() as open_writers:

        def opened(**settings: Any) -> LogWriter:
            writer = LogWriter(path, "shop", **settings)
            open_writers.enter_context(closing(writer))
            return writer

        yield opened
