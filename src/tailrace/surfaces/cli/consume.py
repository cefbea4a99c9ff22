"""`tailrace consume`: changes as a sink would see them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say_json
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, layout_of

if TYPE_CHECKING:
    from tailrace.supervisor.explore.consume import Consumer, From


def consume(
    file: Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")],
    *,
    sink: Annotated[str | None, typer.Option(help="The sink. Absent: the first.")] = None,
    start: Annotated[str, typer.Option("--from", help="`earliest`, `latest`, or an offset.")] = "earliest",
    number: Annotated[int | None, typer.Option("-n", "--number", min=1, help="Records to print, at most.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for what comes, until it is interrupted.")] = False,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print records as a sink would be given them, one a line: through its chain and its envelope. Nothing is
    delivered, and no mark moves. With --json each line is an object with the record as its `value`, and its way."""
    with guard(as_json):
        from tailrace.spec import load_pipelines
        from tailrace.supervisor.explore.consume import Consumer

        [pipeline] = load_pipelines([file])
        with Consumer(pipeline, layout_of(platform_config, data_dir), sink) as consumer:
            try:
                _print(consumer, _start(start), number, follow=follow, as_json=as_json)
            except KeyboardInterrupt:
                return


def _print(consumer: Consumer, start: From, number: int | None, *, follow: bool, as_json: bool) -> None:
    told = 0
    for record in consumer.records(start, limit=number, follow=follow):
        if as_json:
            say_json(record.as_dict())
        else:
            typer.echo(record.value or "")
        told = _tell_letters(consumer, told)
    _tell_letters(consumer, told)


def _tell_letters(consumer: Consumer, told: int) -> int:
    """On standard error: what would become a dead letter, from the first that was not told."""
    for letter in consumer.set_aside[told:]:
        typer.echo(f"offset {letter.seq}: would be a dead letter: {letter.code}: {letter.message}", err=True)
    return len(consumer.set_aside)


def _start(text: str) -> From:
    match text:
        case "earliest" | "latest":
            return text
        case _ if text.isdigit():
            return int(text)
        case _:
            raise typer.BadParameter("use earliest, latest or an offset", param_hint="--from")
