"""`tailrace events`: what happens at a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import TailraceError
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import moment
from tailrace.surfaces.cli.server import connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Event
    from tailrace.surfaces.client import Client

AGAIN_S = 1.0
SHOWN_APART = frozenset({"number", "type", "at", "kind", "name"})


def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens, until Ctrl-C.")] = False,
    after: Annotated[
        int | None,
        typer.Option(
            min=0, help="Begin behind the event of this number. Absent: with the oldest; with --follow, with the next."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print changes of documents, states and operations. With --json, each in a line of its own."""
    with guard(as_json), connected() as client:
        if follow:
            _follow(client, after, as_json)
            return
        for event in client.events(after or 0, follow=False):
            if after is not None or event.number is not None:  # that older ones are gone says nothing new
                _tell(event, as_json)


def _follow(client: Client, after: int | None, as_json: bool) -> None:
    """A connection that breaks is made anew, and goes on where it was; one that never was is an error."""
    begun = False
    while True:
        try:
            for event in client.events(after, follow=True):
                begun, after = True, event.number or after
                _tell(event, as_json)
        except KeyboardInterrupt:
            return
        except TailraceError as error:
            if not begun or error.code != "server.unreachable":
                raise
            typer.echo(f"the connection broke, trying again: {error.message}", err=True)
        time.sleep(AGAIN_S)


def _tell(event: Event, as_json: bool) -> None:
    if as_json:
        say_json({"ok": True, "event": event.as_json()})
        return
    if event.type == "missed":
        say("(some events before this are no longer kept)")
        return
    more = {name: value for name, value in event.as_json().items() if name not in SHOWN_APART and value is not None}
    at = "" if event.at is None else moment(int(event.at * 1e6))
    what = " ".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in more.items())
    say(f"{event.number}  {at}  {event.type}  {event.kind} {event.name}  {what}".rstrip())
