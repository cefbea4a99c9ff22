"""`tailrace new`: a package to begin a connector of your own with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json

new = typer.Typer(help="Begin a connector of your own.", no_args_is_help=True)


@new.command()
def sink(
    name: Annotated[str, typer.Argument(help="What documents are to call it, as `type`.", metavar="NAME")],
    into: Annotated[Path, typer.Option(help="Where the package's folder is made.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write a small package with a sink that works and a test of what it promises. Nothing is overwritten."""
    with guard(as_json):
        from tailrace.scaffold import new_sink

        made = new_sink(name, into)
    if as_json:
        files = sorted(str(path) for path in made.folder.iterdir())
        say_json({"ok": True, "type": made.name, "folder": str(made.folder), "files": files})
        return
    say(f"wrote {made.folder}: it appends lines to a file, until you make it do something else")
    say(f"  1. pip install -e '{made.folder}[test]'")
    say(f"  2. pytest {made.folder}: what every sink promises, kept by this one")
    say(f"  3. edit {made.module}, above all `write`; its docstring says how it absorbs a repeat")
    say(f"  4. use it: sinks: [{{type: {made.name}, config: {{id: mine, path: lines.txt}}}}]")
