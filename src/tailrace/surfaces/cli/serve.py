"""`tailrace serve`: keep pipelines running that come, change and go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json

if TYPE_CHECKING:
    from tailrace.spec import Platform


def serve(
    config: Annotated[
        list[Path] | None,
        typer.Option(help="Pipeline documents, or folders of them, to apply at the start.", metavar="FILE|FOLDER"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on, instead of the platform's.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port, instead of the platform's.")] = None,
    platform_config: Annotated[Path | None, typer.Option(help="The platform document.")] = None,
    as_json: Json = False,
) -> None:
    """Serve pipelines: apply, change, watch, pause and delete them over HTTP. Ctrl-C or SIGTERM drains."""
    with guard(as_json):
        from tailrace import telemetry
        from tailrace.surfaces.rest.server import serve as serve_rest

        platform = _platform(platform_config, host, port)
        telemetry.configure(platform.logging.level, platform.logging.format)

        def tell(address: str) -> None:
            if as_json:
                say_json({"ok": True, "address": address})
            else:
                say(f"tailrace: serving at {address} (Ctrl-C drains)")

        serve_rest(platform, _documents(config or []), tell)


def _platform(file: Path | None, host: str | None, port: int | None) -> Platform:
    from tailrace.spec import load_platform

    platform = load_platform(file)
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return platform.model_copy(update={"server": platform.server.model_copy(update=given)})


def _documents(places: list[Path]) -> list[Path]:
    """Files as they are; of folders, the YAML files in them, by name."""
    found: list[Path] = []
    for place in places:
        inside = (
            [each for each in sorted(place.iterdir()) if each.suffix in (".yaml", ".yml")] if place.is_dir() else []
        )
        found += inside if place.is_dir() else [place]
    return found
