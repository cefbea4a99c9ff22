"""Progress on standard error: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")
LINES_S, SAME_S = 5.0, 30.0
"""Between two lines, and between two that say the same."""


def in_terminal() -> bool:
    return sys.stderr.isatty()


@contextmanager
def progress_bar(rows: str, *more: ProgressColumn) -> Iterator[Progress]:
    """A bar with rate; `rows` tells how far a task is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    first = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(show_speed=True), TextColumn(rows))
    with Progress(*first, *more, console=Console(stderr=True)) as shown:
        yield shown


def lines(line: Callable[[T], str]) -> Callable[[T], None]:
    """Tells `line` of what it is given, not too often."""
    told, at = "", 0.0

    def show(progress: T) -> None:
        nonlocal told, at
        waited = time.monotonic() - at
        if waited >= LINES_S and (waited >= SAME_S or line(progress) != told):
            told, at = line(progress), time.monotonic()
            typer.echo(told, err=True)

    return show
