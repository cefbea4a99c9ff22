"""`tailrace run`: carry the changes until told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say_json

if TYPE_CHECKING:
    from tailrace.supervisor.status import Status


def run(
    files: Annotated[list[Path], typer.Argument(help="Pipeline documents.", metavar="FILE…")],
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all that is committed now is delivered.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this many seconds.")] = None,
    platform_config: Annotated[Path | None, typer.Option(help="The platform document.")] = None,
    as_json: Json = False,
) -> None:
    """Run pipelines. Ctrl-C or SIGTERM drains: the batches that run are finished, nothing is lost.

    What happens is logged on standard error, as the platform document's `logging` says."""
    with guard(as_json):
        from tailrace import telemetry
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor import Supervisor
        from tailrace.surfaces import metrics
        from tailrace.surfaces.cli import live

        pipelines, platform = load_pipelines(files), load_platform(platform_config)
        logging = platform.logging
        telemetry.configure(logging.level, logging.format)
        supervisor = Supervisor(pipelines, platform)
        quiet = not as_json and telemetry.is_json(logging.format)
        with metrics.served(platform.ports.metrics) as keep, live.view(as_json, quiet=quiet) as show:

            def on_tick(status: Status) -> None:
                keep(status)
                show(status)

            status = supervisor.run(until_caught_up=until_caught_up, seconds=seconds, on_tick=on_tick)
    if as_json:
        say_json({"ok": True, **status.as_dict()})
