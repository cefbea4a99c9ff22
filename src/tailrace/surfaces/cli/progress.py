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
LINES_S = 5.0


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
    last = [0.0]

    def show(progress: T) -> None:
        if time.monotonic() >= last[0] + LINES_S:
            last[0] = time.monotonic()
            typer.echo(line(progress), err=True)

    return show
