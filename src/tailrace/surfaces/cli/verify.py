"""`tailrace verify`: compare a source and the tables kept of it, by content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.progress import in_terminal, lines, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import TaskID

    from tailrace.supervisor.verify import VerifyProgress
    from tailrace.supervisor.verify.report import Shown, TableReport


def verify(
    file: Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")],
    *,
    sink: Annotated[str | None, typer.Option(help="The sink to compare. Absent: all that keep tables.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="A table to compare, `schema.table`, `*` for any part. Absent: all.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make differing rows equal again, then compare them again.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Differing rows of a table to show.")] = 20,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show the values of differing columns, too.")
    ] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait where nothing moves.")] = 120.0,
    platform_config: Annotated[Path | None, typer.Option(help="The platform document.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a source with the tables that its sinks keep equal to it, by content, while both live. Exit code 1 where
    they differ."""
    with guard(as_json):
        from tailrace.spec import load_pipelines, load_platform
        from tailrace.supervisor.verify import Verification, VerifyOptions

        [pipeline] = load_pipelines([file])
        options = VerifyOptions(sink, tuple(table or ()), repair, limit, patience)
        verification = Verification(pipeline, load_platform(platform_config), options)
        with _bar() as show:
            reports = verification.run(show)
    equal = all(report.equal for report in reports)
    if as_json:
        say_json({"ok": equal, "tables": [report.as_dict(values=show_values) for report in reports]})
    else:
        for report in reports:
            _tell(report, show_values)
    if not equal:
        raise typer.Exit(1)


def _tell(report: TableReport, values: bool) -> None:
    name = f"{report.sink} {report.table}"
    if report.problem:
        say(f"{name}: not compared: {report.problem}", color="red")
        return
    through = f"through offset {report.offset} ({report.position})"
    repaired = f", {report.repaired:,} repaired" if report.repaired else ""
    if report.equal:
        say(f"{name}: equal, {report.rows:,} rows compared {through}{repaired}", color="green")
        return
    counts = [f"{rows:,} {kind}" for kind, rows in sorted(report.differences.items())]
    counts += [f"{report.unsettled:,} changing too fast to tell"] if report.unsettled else []
    say(f"{name}: {', '.join(counts)}; {report.rows:,} rows compared {through}{repaired}", color="red")
    for shown in report.shown:
        say(f"  {_line(shown, values)}")
    if report.differing > len(report.shown):
        say(f"  … and {report.differing - len(report.shown):,} more")


def _line(shown: Shown, values: bool) -> str:
    key = json.dumps(shown.key, ensure_ascii=False) if shown.key else "(no key)"
    columns = f" in {', '.join(shown.columns)}" if shown.columns else ""
    if not values:
        return f"{shown.kind} {key}{columns}"
    names = shown.columns or tuple(shown.source or shown.lake or ())
    sides = [(label, side) for label, side in (("source", shown.source), ("lake", shown.lake)) if side is not None]
    told = [f"{label} {json.dumps({name: side[name] for name in names}, ensure_ascii=False)}" for label, side in sides]
    return f"{shown.kind} {key}{columns}: {'; '.join(told)}"


@contextmanager
def _bar() -> Iterator[Callable[[VerifyProgress], None]]:
    """Rows, rate and what is waited for."""
    if not in_terminal():
        yield lines(_told)
        return
    with progress_bar("{task.completed:,.0f} rows {task.fields[waiting]}") as bar:
        tasks: dict[str, TaskID] = {}

        def show(step: VerifyProgress) -> None:
            name = f"{step.report.sink} {step.report.table}"
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=step.estimate, waiting="")
            bar.update(tasks[name], completed=step.report.rows, waiting=step.waiting)

        yield show


def _told(step: VerifyProgress) -> str:
    waiting = f", {step.waiting}" if step.waiting else ""
    return f"{step.report.sink} {step.report.table}: {step.report.rows:,} rows{waiting}"
