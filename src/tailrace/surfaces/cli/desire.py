"""`tailrace pause`, `resume`, `stop` and `delete`: what pipelines of a server shall do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import LIMIT, Name, Names, Timeout, Wait, connected, limit_of, wait

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Pipeline
    from tailrace.surfaces.client import Client

Turn = Callable[["Client", str], "Pipeline"]


def pause(names: Names, *, wait_for_it: Wait = False, timeout: Timeout = LIMIT, as_json: Json = False) -> None:
    """Deliver nothing more, and keep reading the source into the change log."""
    _turn(names, lambda client, name: client.pause(name), wait_for_it, timeout, as_json)


def resume(names: Names, *, wait_for_it: Wait = False, timeout: Timeout = LIMIT, as_json: Json = False) -> None:
    """Run pipelines that were paused or stopped; what has failed is tried anew."""
    _turn(names, lambda client, name: client.resume(name), wait_for_it, timeout, as_json)


def stop(names: Names, *, wait_for_it: Wait = False, timeout: Timeout = LIMIT, as_json: Json = False) -> None:
    """Neither read nor deliver. The source keeps what is not in the change log yet."""
    _turn(names, lambda client, name: client.stop(name), wait_for_it, timeout, as_json)


def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """End a pipeline and forget its document. Its change log, its slots, and what its sinks have stay."""
    with guard(as_json), connected() as client:
        known = client.pipeline(name)
        if not yes:
            told = (
                f"{name} is {known.status}. Its change log, its slots, and what its sinks have stay; its document goes."
            )
            typer.echo(told, err=True)
            typer.confirm("End and forget it?", abort=True, err=True)
        client.delete(name)
    if as_json:
        say_json({"ok": True, "deleted": name})
    else:
        say(f"{name}: deleted")


def _turn(names: list[str], turn: Turn, wait_for_it: bool, timeout: str, as_json: bool) -> None:
    with guard(as_json):
        limit_s = limit_of(timeout)
        with connected() as client:
            asked = [turn(client, name) for name in names]
            found = [wait(client, each, limit_s) for each in asked] if wait_for_it else asked
    if as_json:
        say_json({"ok": True, "pipelines": [each.as_json() for each in found]})
        return
    for each in found:
        say(f"{each.name}: {each.status}" if wait_for_it else f"{each.name}: shall be {each.desired}")
