"""`tailrace status`: how the pipelines of a server are, the worst first; once, or live."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import ConfigError
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import Labels, connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Pipeline
    from tailrace.surfaces.cli.board import Look
    from tailrace.surfaces.client import Client


def status(
    name: Annotated[
        str | None, typer.Argument(help="A pipeline, with its parts. Absent: all.", metavar="[NAME]")
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, until Ctrl-C.")] = False,
    label: Labels = None,
    as_json: Json = False,
) -> None:
    """Print how pipelines of the server are, the worst first, with reasons and ways out."""
    with guard(as_json):
        from tailrace.surfaces.cli.board import lines, shown
        from tailrace.surfaces.cli.board import watch as watch_live

        if label and name is not None:
            raise ConfigError("get.two_choices", "a name and labels choose twice", hint="leave one of them out")
        with connected() as client:
            look = _look(client, name, label or [])
            if watch:
                with shown(as_json, whole=name is not None) as show, suppress(KeyboardInterrupt):
                    watch_live(look, show)
                return
            found = look()
    if as_json:
        say_json({"ok": True, "pipelines": [each.as_json() for each in found]})
        return
    for line in lines(found, None, whole=name is not None):
        say(line)


def _look(client: Client, name: str | None, labels: list[str]) -> Look:
    def look() -> list[Pipeline]:
        from tailrace.surfaces.cli.figures import worst_first

        return worst_first(client.pipelines(labels, figures=True)) if name is None else [client.pipeline(name)]

    return look
