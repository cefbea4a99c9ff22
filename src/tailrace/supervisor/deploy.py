"""What pipelines keep at their sources' servers: made ahead of a run, and removed when they are not run any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrace.config import Model
from tailrace.errors import LogError
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.inspect.log import summarize
from tailrace.supervisor.layout import Layout, run_lock

Parts = Mapping[str, Sequence[Any]]
"""Source id → what it has at its server, each with `kind`, `name`, `detail` and `made`."""


def deploy(pipelines: Sequence[Pipeline], platform: Platform) -> Parts:
    """Make what is missing at each source, so that nothing committed from now on is missed."""
    layout = Layout.of(platform)
    return {name: source.deploy(_resume(layout, name)) for name, source in _sources(pipelines).items()}  # type: ignore[attr-defined]


@contextlib.contextmanager
def undeploying(pipelines: Sequence[Pipeline], platform: Platform) -> Iterator[Parts]:
    """Yields what will be removed, while none of the pipelines can start; refused while one runs."""
    layout = Layout.of(platform)
    with contextlib.ExitStack() as stack:
        for pipeline in pipelines:
            stack.enter_context(run_lock(layout, pipeline.name))
        yield {name: source.deployed() for name, source in _sources(pipelines).items()}  # type: ignore[attr-defined]


def undeploy(pipelines: Sequence[Pipeline]) -> Parts:
    """Remove it; call this inside `undeploying`."""
    return {name: source.undeploy() for name, source in _sources(pipelines).items()}  # type: ignore[attr-defined]


def _sources(pipelines: Sequence[Pipeline]) -> dict[str, Model]:
    return {pipeline.source_id: pipeline.source for pipeline in pipelines}


def _resume(layout: Layout, source: str) -> Mapping[str, str] | None:
    try:
        return summarize(layout.log(source)).resume
    except LogError as error:
        if error.code != "log.missing":
            raise
        return None
