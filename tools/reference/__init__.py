"""The pages of `docs/reference`, made from the code, so that they say what the code does: `make docs`.

keys      the keys of the documents        from the pydantic models
codes     the error codes                  from the statements that raise them
commands  the command line                 from its Typer application
metrics   what `GET /metrics` tells        from the collector that tells it

It is a tool of the repository and not a command of Tailrace: it reads the source files, which an installed package may
not have, and nobody needs it where pipelines run.
"""

from __future__ import annotations

from pathlib import Path

from tools.reference.codes import error_page
from tools.reference.commands import command_page
from tools.reference.keys import pipeline_page, platform_page, processor_page, sink_page, source_page
from tools.reference.metrics import metrics_page

PAGES = {
    "pipeline.md": pipeline_page,
    "sources.md": source_page,
    "sinks.md": sink_page,
    "processors.md": processor_page,
    "platform.md": platform_page,
    "commands.md": command_page,
    "errors.md": error_page,
    "metrics.md": metrics_page,
}
"""Every page of `docs/reference`, by the name of its file."""


def stale(folder: Path) -> list[str]:
    """The files of a folder that are not what the code says: changed, missing, or made by nothing."""
    there = {file.name: file.read_text() for file in folder.iterdir()}
    made = {name: page() for name, page in PAGES.items()}
    return sorted(name for name in there | made if there.get(name) != made.get(name))
