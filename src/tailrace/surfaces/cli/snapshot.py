"""`tailrace snapshot`: read tables again while the pipeline streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.progress import in_terminal, lines, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.supervisor.snapshots.requests import RunProgress, SnapshotRequests

POLL_S = 0.5


def snapshot(
    file: Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")],
    *,
    table: Annotated[
        list[str] | None, typer.Option(help="A table to read, `schema.table`, `*` for any part. Absent: all.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Read only rows that fulfil this SQL condition.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Start over after the position was lost: empty every table, read it again.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the snapshots that are under way.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Watch until it is done.")] = True,
    platform_config: Annotated[Path | None, typer.Option(help="The platform document.")] = None,
    as_json: Json = False,
) -> None:
    """Read tables again, into the log, while the pipeline streams. Ctrl-C leaves it running."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor.snapshots.requests import SnapshotRequests

        [pipeline] = load_pipelines([file])
        requests = SnapshotRequests(pipeline, load_platform(platform_config))
        if cancel:
            _cancel(requests, as_json)
            return
        run = requests.request(table or [], where, repair=repair)
        for warning in requests.warnings:
            typer.echo(f"warning: {warning}", err=True)
        progress = _watch(requests, run) if wait else requests.progress(run)
    _tell(progress, as_json)


def _cancel(requests: SnapshotRequests, as_json: bool) -> None:
    cancelled = requests.cancel()
    if as_json:
        say_json({"ok": True, "cancelled": cancelled})
    else:
        say(f"cancelled {', '.join(cancelled)}" if cancelled else "no snapshot is under way")


def _watch(requests: SnapshotRequests, run: str) -> RunProgress:
    """Until it is over, the user leaves, or nobody works on it."""
    progress = requests.progress(run)
    try:
        with _bar() as show:
            while progress.run.state == "active" and progress.working:
                show(progress)
                time.sleep(POLL_S)
                progress = requests.progress(run)
            show(progress)
    except KeyboardInterrupt:
        pass
    return progress


def _tell(progress: RunProgress, as_json: bool) -> None:
    run = progress.run
    if as_json:
        say_json(
            {"ok": run.state != "failed", "run": asdict(run), "tables": [asdict(each) for each in progress.tables]}
        )
    elif run.state == "active":
        where = "it goes on in the pipeline's process" if progress.working else "it begins when the pipeline runs"
        say(f"snapshot {run.id}: {progress.rows:,} rows so far; {where}. Cancel it with --cancel")
    elif run.error is not None:
        told = [table.error for table in progress.tables if table.error is not None] or [run.error]
        reasons = [f"\n  {error['where']}: {error['message']}\n  hint: {error['hint']}" for error in told]
        say(f"snapshot {run.id} failed:{''.join(reasons)}", color="red")
    else:
        seconds = ((run.finished_us or run.created_us) - run.created_us) / 1e6
        say(
            f"snapshot {run.id} {run.state}: {progress.rows:,} rows of {len(progress.tables)} tables in {seconds:.1f} s"
        )
    if run.state == "failed":
        raise typer.Exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[RunProgress], None]]:
    """Rows, rate and time left."""
    if not in_terminal():
        yield lines(_line)
        return
    from rich.progress import TimeRemainingColumn

    with progress_bar("{task.completed:,.0f} rows", TimeRemainingColumn()) as bar:
        task = bar.add_task("snapshot", total=None)
        yield lambda found: bar.update(task, completed=found.rows, total=found.estimate)


def _line(found: RunProgress) -> str:
    of = f" of about {found.estimate:,}" if found.estimate else ""
    return f"snapshot {found.run.id}: {found.rows:,}{of} rows"
