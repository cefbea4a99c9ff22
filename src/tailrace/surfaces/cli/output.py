"""How commands speak: plain lines for people, lines of JSON for machines, errors that name the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.errors import RunError, TailraceError
from tailrace.machine.space import full_disk

if TYPE_CHECKING:
    from tailrace.sinks.tables import Debt
    from tailrace.supervisor.status import DebtStatus

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
"""The option that every command has."""


@contextmanager
def guard(as_json: bool) -> Iterator[None]:
    """Turn a `TailraceError`, and a full disk, into its report and exit code. Anything else is a bug and stays a
    traceback."""
    try:
        yield
    except TailraceError as error:
        _report(error, as_json)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        full = full_disk(error)
        if full is None:
            raise
        _report(full, as_json)
        raise typer.Exit(full.exit_code) from None


def say(text: str, *, color: str | None = None) -> None:
    """One line for people, on standard output; coloured where a terminal shows it."""
    typer.secho(text, fg=color, color=_coloured())


def say_json(value: Any) -> None:
    """One line of JSON for machines, on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]], colors: Sequence[str | None] = ()) -> None:
    """Rows under the names of their columns, which are as wide as they need to be; the last is not filled up."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)][:-1]
    for row, color in zip((columns, *rows), (None, *colors, *[None] * (len(rows) - len(colors))), strict=True):
        filled = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        say("  ".join([*filled, row[-1]]).rstrip(), color=color)


def debt(found: DebtStatus | Debt) -> str:
    """What upkeep would remove, in words."""
    small = f"{found.files:,} files, {found.small_files:,} small"
    return f"{small}, {found.delete_files:,} delete files, {found.snapshots:,} snapshots"


def _report(error: TailraceError, as_json: bool) -> None:
    if as_json:
        say_json({"ok": False, "problems": _problems(error)})
        return
    for problem in _problems(error):
        _say_problem(problem)


def _say_problem(problem: dict[str, Any]) -> None:
    code = typer.style(f"error[{problem['code']}]", fg="red", bold=True)
    path = f"{problem['path']}: " if problem.get("path") else ""
    lines = [f"{code} {path}{problem['message']}"]
    lines += [f"  at {problem['where']}"] if problem["where"] else []
    lines += [f"  hint: {problem['hint']}"] if problem["hint"] else []
    typer.secho("\n".join(lines), err=True, color=_coloured())


def _problems(error: TailraceError) -> list[dict[str, Any]]:
    from tailrace.config.problems import DocumentError
    from tailrace.config.secret import redact

    if isinstance(error, RunError):
        return [problem for each in error.errors for problem in _problems(each)]
    if isinstance(error, DocumentError):
        return [{**problem.as_dict(), "where": problem.where} for problem in error.problems]
    return [{key: redact(text) for key, text in error.as_dict().items()}]


def _coloured() -> bool | None:
    """None leaves it to the terminal; https://no-color.org is kept."""
    return False if os.environ.get("NO_COLOR") else None
