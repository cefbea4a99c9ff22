"""`tailrace validate`: is this document right? It opens no connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json

if TYPE_CHECKING:
    from tailrace.spec import Pipeline


def validate(
    files: Annotated[list[Path], typer.Argument(help="Pipeline documents.", metavar="FILE…")],
    platform_config: Annotated[Path | None, typer.Option(help="A platform document to check as well.")] = None,
    as_json: Json = False,
) -> None:
    """Check pipeline documents and say everything that is wrong with them."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform

        pipelines = load_pipelines(files)
        load_platform(platform_config)
        found = [_summary(file, pipeline) for file, pipeline in zip(files, pipelines, strict=True)]
    if as_json:
        say_json({"ok": True, "pipelines": found})
        return
    for one in found:
        sinks = ", ".join(f"{sink['id']} ({sink['type']})" for sink in one["sinks"])
        say(f"ok {one['file']}: {one['name']}: {one['source']['id']} ({one['source']['type']}) → {sinks}")


def _summary(file: Path, pipeline: Pipeline) -> dict[str, Any]:
    return {
        "file": str(file),
        "name": pipeline.name,
        "tenant": pipeline.metadata.tenant,
        "source": {"id": pipeline.source_id, "type": pipeline.spec.source.type},
        "sinks": [
            {"id": sink.id, "type": entry.type} for sink, entry in zip(pipeline.sinks, pipeline.spec.sinks, strict=True)
        ],
    }
