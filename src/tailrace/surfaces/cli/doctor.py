"""`tailrace doctor`: is everything ready? It connects and looks, and changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import SetupError
from tailrace.surfaces.cli.output import Json, guard, say, say_json

if TYPE_CHECKING:
    from tailrace.supervisor.doctor import Check, State

_SHOWN: dict[State, tuple[str, str | None]] = {
    "ok": ("ok", "green"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "red"),
    "skipped": ("skip", None),
}


def doctor(
    files: Annotated[list[Path], typer.Argument(help="Pipeline documents.", metavar="FILE…")],
    platform_config: Annotated[Path | None, typer.Option(help="The platform document.")] = None,
    as_json: Json = False,
) -> None:
    """Check the machine, the sources and the sinks of pipelines, and name each fix."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor.doctor import diagnose

        found: list[Check] = []
        for check in diagnose(load_pipelines(files), load_platform(platform_config)):
            if not as_json:
                _say(check, new=not found or found[-1].about != check.about)
            found.append(check)
    counts = Counter(check.state for check in found)
    if as_json:
        say_json({"ok": not counts["fail"], "checks": [asdict(check) for check in found]})
    else:
        say(", ".join(f"{counts[state]} {word}" for state, (word, _) in _SHOWN.items()))
    if counts["fail"]:
        raise typer.Exit(SetupError.exit_code)


def _say(check: Check, *, new: bool) -> None:
    if new:
        say(check.about)
    word, color = _SHOWN[check.state]
    say(f"  {typer.style(f'{word:5}', fg=color)} {check.name:18} {check.detail}")
    if check.fix:
        say(f"        {'fix:':18} {check.fix}")
