"""`tailrace token`: who may call a server. It works on the data directory: whoever has its files is its admin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, layout_of, moment
from tailrace.surfaces.cli.server import columns

if TYPE_CHECKING:
    from tailrace.control.tokens import Token, Tokens

token = typer.Typer(help="Tokens: who may call the server of a data directory.", no_args_is_help=True)

ACTOR = "command line"


class Scope(Enum):
    """Each may do what those before it may."""

    VIEW = "view"
    OPERATE = "operate"
    ADMIN = "admin"


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is. It stands in the history of what was done with it.")],
    *,
    scope: Annotated[
        Scope, typer.Option(help="view: look; operate: also apply, pause and resume; admin: also delete.")
    ] = Scope.VIEW,
    values: Annotated[bool, typer.Option("--values", help="It may see the values of rows.")] = False,
    expires: Annotated[
        str | None, typer.Option(help="After how long it is void, such as `90d`. Absent: never.")
    ] = None,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it. It is printed this once, and kept nowhere in the clear."""
    with guard(as_json), _tokens(platform_config, data_dir) as tokens:
        expires_us = _moment_after(expires)
        made, clear = tokens.create(name, scope.value, sees_values=values, expires_us=expires_us, actor=ACTOR)
    if as_json:
        say_json({"ok": True, "token": clear, **_told(made)})
        return
    say(clear)
    typer.echo("keep it now, for example in TAILRACE_TOKEN: it is not shown again", err=True)


@token.command("list")
def list_(platform_config: PlatformConfig = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the tokens, valid or not. What they are checked by is not shown."""
    with guard(as_json), _tokens(platform_config, data_dir) as tokens:
        found = tokens.list()
    if as_json:
        say_json({"ok": True, "tokens": [_told(each) for each in found]})
    elif not found:
        say("there are no tokens: tailrace token create makes one")
    else:
        titles = ("id", "name", "scope", "values", "state", "created", "expires", "last used")
        for line in columns(titles, [_row(each) for each in found]):
            say(line)


@token.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The token, by its id, or its name where it is valid.")],
    *,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a token void, from now on."""
    with guard(as_json), _tokens(platform_config, data_dir) as tokens:
        found = _find(tokens, name)
        tokens.revoke(found.id, actor=ACTOR)
    if as_json:
        say_json({"ok": True, "revoked": found.id, "name": found.name})
    else:
        say(f"revoked {found.id} of {found.name}")


@contextmanager
def _tokens(platform_config: Path | None, data_dir: Path | None) -> Iterator[Tokens]:
    from tailrace.control.tokens import Tokens

    store = layout_of(platform_config, data_dir).open_store()
    try:
        yield Tokens(store)
    finally:
        store.close()


def _find(tokens: Tokens, name: str) -> Token:
    from tailrace.errors import ConfigError

    valid = [each for each in tokens.list() if state_of(each, time.time()) == "valid"]
    found = next((each for each in valid if each.id == name), None)
    found = found or next((each for each in valid if each.name == name), None)
    if found is None:
        hint = "tailrace token list shows which there are"
        raise ConfigError("token.missing", f"there is no valid token {name!r}", hint=hint)
    return found


def state_of(token: Token, now: float) -> str:
    if token.revoked_us is not None:
        return "revoked"
    return "expired" if token.expires_us is not None and token.expires_us <= now * 1e6 else "valid"


def _moment_after(text: str | None) -> int | None:
    """Microseconds since 1970."""
    from pydantic_core import PydanticCustomError

    from tailrace.config.values import parse_duration
    from tailrace.errors import ConfigError

    if text is None:
        return None
    try:
        seconds = parse_duration(text).total_seconds()
    except PydanticCustomError:
        seconds = 0.0
    if seconds <= 0:
        raise ConfigError(
            "token.bad_expiry", f"{text!r} is not how long a token lasts", hint="write it like 12h or 90d"
        )
    return int((time.time() + seconds) * 1e6)


def _told(token: Token) -> dict[str, Any]:
    return {**vars(token), "state": state_of(token, time.time())}


def _row(token: Token) -> list[str]:
    times = (token.created_us, token.expires_us, token.last_used_us)
    shown = ["" if each is None else moment(each) for each in times]
    sees = "yes" if token.sees_values else "no"
    return [token.id, token.name, token.scope, sees, state_of(token, time.time()), *shown]
