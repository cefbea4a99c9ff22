"""`tailrace deploy` and `undeploy`: what a pipeline keeps at its source's server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json

Files = Annotated[list[Path], typer.Argument(help="Pipeline documents.", metavar="FILE…")]
PlatformConfig = Annotated[Path | None, typer.Option(help="The platform document.")]


def deploy(files: Files, platform_config: PlatformConfig = None, as_json: Json = False) -> None:
    """Make what the sources need, such as slots and publications, ahead of the first run."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor import deploy as use_case

        parts = use_case.deploy(load_pipelines(files), load_platform(platform_config))
    if as_json:
        say_json({"ok": True, "sources": _plain(parts)})
        return
    for source, one in _each(parts):
        say(f"{source}: {'made' if one.made else 'found'} {one.kind} {one.name} ({one.detail})")


def undeploy(
    files: Files,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Remove what was made at the sources: their logs cannot be continued afterwards."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor import deploy as use_case

        pipelines = load_pipelines(files)
        with use_case.undeploying(pipelines, load_platform(platform_config)) as planned:
            if any(planned.values()) and not yes:
                for source, one in _each(planned):
                    typer.echo(f"{source}: will drop {one.kind} {one.name} ({one.detail})", err=True)
                typer.confirm("Changes not captured yet are lost to these pipelines. Drop?", abort=True, err=True)
            parts = use_case.undeploy(pipelines)
    if as_json:
        say_json({"ok": True, "sources": _plain(parts)})
        return
    for source, one in _each(parts):
        say(f"{source}: dropped {one.kind} {one.name}")
    if not any(parts.values()):
        say("nothing to drop")


def _each(parts: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    return [(source, one) for source, found in parts.items() for one in found]


def _plain(parts: Mapping[str, Sequence[Any]]) -> dict[str, list[dict[str, Any]]]:
    return {source: [asdict(one) for one in found] for source, found in parts.items()}
