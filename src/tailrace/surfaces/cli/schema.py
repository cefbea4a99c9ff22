"""`tailrace schema`: the JSON Schema of a document, for editors and forms."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard


class Document(Enum):
    """The documents there are."""

    PIPELINE = "pipeline"
    PLATFORM = "platform"


def schema(
    document: Annotated[Document, typer.Argument(help="Which document.")] = Document.PIPELINE, as_json: Json = False
) -> None:
    """Print the JSON Schema of a document, with every connector. It is JSON with and without --json."""
    with guard(as_json):
        from tailrace.spec import json_schema

        typer.echo(json.dumps(json_schema(document.value), indent=2, ensure_ascii=False))
