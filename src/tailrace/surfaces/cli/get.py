"""`tailrace get`: which pipelines a server has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import Labels, ago, columns, connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Pipeline


def get(
    name: Annotated[str | None, typer.Argument(help="A pipeline. Absent: all.", metavar="[NAME]")] = None,
    *,
    label: Labels = None,
    document: Annotated[
        bool, typer.Option("--document", help="Print the document of NAME, without its secrets, to edit and apply.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the pipelines of the server."""
    with guard(as_json):
        _refuse_unclear(name, label, document=document)
        with connected() as client:
            found = client.pipelines(label or ()) if name is None else [client.pipeline(name)]
    if as_json:
        say_json({"ok": True, "pipelines": [each.as_json() for each in found]})
    elif document:
        say(_yaml(found[0]))
    elif not found:
        say("there are no such pipelines" if label else "there are no pipelines: tailrace apply makes them")
    else:
        for line in columns(
            ("name", "status", "for", "desired", "version", "source", "sinks", "labels"), [_row(each) for each in found]
        ):
            say(line)


def _refuse_unclear(name: str | None, label: list[str] | None, *, document: bool) -> None:
    from tailrace.errors import ConfigError

    if document and name is None:
        raise ConfigError("get.no_name", "whose document?", hint="name the pipeline")
    if label and name is not None:
        raise ConfigError("get.two_choices", "a name and labels choose twice", hint="leave one of them out")


def _row(pipeline: Pipeline) -> list[str]:
    return [
        pipeline.name,
        pipeline.status,
        "" if pipeline.since is None else ago(time.time() - pipeline.since),
        pipeline.desired or "",
        str(pipeline.version),
        pipeline.source_type,
        ",".join(pipeline.sink_types),
        ",".join(f"{label}={value}" for label, value in sorted(pipeline.labels.items())),
    ]


def _yaml(pipeline: Pipeline) -> str:
    import yaml

    document = pipeline.spec.as_json()
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text.rstrip()
