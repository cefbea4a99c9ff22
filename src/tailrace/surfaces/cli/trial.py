"""`tailrace test`: what a pipeline's processors make of some changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, data_dir_of

if TYPE_CHECKING:
    from tailrace.spec import Pipeline
    from tailrace.supervisor.trial import Difference, Disagreement, Result, Row
    from tailrace.supervisor.trial.samples import Samples


def test(
    file: Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")],
    *,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Changes, one a line: native records, or {table, op, before, after, key}."),
    ] = None,
    from_log: Annotated[
        int | None, typer.Option(min=1, help="The last so many changes of the source's log, instead of a file.")
    ] = None,
    sink: Annotated[str | None, typer.Option(help="The sink whose chain it is. Absent: the first.")] = None,
    twice: Annotated[
        bool, typer.Option("--twice", help="Try them again in other ways, and show what then comes out otherwise.")
    ] = False,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run the processors before a sink on sample changes, and show what becomes of each. It writes nothing and opens no
    connection. Exit code 1 where a second try says something else."""
    if (input_ is None) == (from_log is None):
        raise typer.BadParameter("give one of --input and --from-log", param_hint="--input")
    with guard(as_json):
        from tailrace.spec import load_pipelines
        from tailrace.supervisor.trial import Trial

        [pipeline] = load_pipelines([file])
        samples = _samples(pipeline, input_, from_log, platform_config, data_dir)
        trial = Trial.of(pipeline, sink)
        with _heard():
            results = trial.run(samples)
        again = trial.again(samples, results) if twice else []
    if as_json:
        say_json(_as_json(trial.sink.id, results, again))
    else:
        _tell(results, again, twice)
    if again:
        raise typer.Exit(1)


def _samples(
    pipeline: Pipeline, file: Path | None, from_log: int | None, platform_config: Path | None, data_dir: Path | None
) -> Samples:
    from tailrace.supervisor.inspect.log import find_log
    from tailrace.supervisor.trial import samples

    if file is not None:
        return samples.from_file(file, pipeline.source_id)
    return samples.from_log(find_log(pipeline.source_id, data_dir_of(platform_config, data_dir)), from_log or 1)


@contextmanager
def _heard() -> Iterator[None]:
    """What scripts print goes to standard error."""
    logger, handler = logging.getLogger("tailrace.processors"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _tell(results: Sequence[Result], again: Sequence[Disagreement], twice: bool) -> None:
    for result in results:
        _tell_one(result)
    counts = Counter(_fate(result) for result in results) + Counter(made=sum(len(each.made) for each in results))
    say(f"{len(results)} changes: " + (", ".join(f"{count} {fate}" for fate, count in counts.items()) or "none"))
    for each in again:
        say(f"{each.way}: {_name(each.change)}", color="red")
        _tell_differences(each.differences)
    if twice and not again:
        say("the same when tried again, in other ways", color="green")


def _tell_one(result: Result) -> None:
    fate = _fate(result)
    dropped = f" by {result.dropped_by}: {result.reason}" if result.dropped_by else ""
    colors = {"unchanged": None, "changed": "yellow", "dropped": "red"}
    say(f"{_name(result.change)}  {fate}{dropped}", color=colors[fate])
    _tell_differences(result.differences())
    for row in result.made:
        say(f"  made {row['part']}: {row['op']}  {row['after'] or row['before'] or row['key'] or ''}", color="cyan")
        _tell_differences(_ways(row), indent=4)


def _tell_differences(differences: Iterable[Difference], indent: int = 2) -> None:
    for each in differences:
        if each.before is None:
            sign, values, color = "+", each.after, "green"
        elif each.after is None:
            sign, values, color = "-", each.before, "red"
        else:
            sign, values, color = "~", f"{each.before} → {each.after}", "yellow"
        say(f"{' ' * indent}{sign} {each.member}  {values}", color=color)


def _ways(row: Row) -> Iterator[Difference]:
    """Where a change that was made goes, and how it is tagged."""
    from tailrace.supervisor.trial import differences

    yield from differences({}, row, ("tags", "route"))


def _fate(result: Result) -> str:
    if result.dropped_by:
        return "dropped"
    return "changed" if result.differences() else "unchanged"


def _name(change: Row) -> str:
    image = change["key"] or change["after"] or change["before"] or ""
    return f"{change['schema']}.{change['table']}  {change['op']}  {image}".rstrip()


def _as_json(sink: str, results: Sequence[Result], again: Sequence[Disagreement]) -> dict[str, Any]:
    return {
        "ok": not again,
        "sink": sink,
        "changes": [
            {
                "change": _row(result.change),
                "fate": _fate(result),
                **({"dropped_by": result.dropped_by, "reason": result.reason} if result.dropped_by else {}),
                "differences": [asdict(each) for each in result.differences()],
                "made": [_row(row) for row in result.made],
            }
            for result in results
        ],
        "disagreements": [
            {"way": each.way, "change": _row(each.change), "differences": [asdict(one) for one in each.differences]}
            for each in again
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    names = ("seq", "part", "schema", "table", "op", "key", "before", "after", "tags", "synthetic")
    return {**{name: row.get(name) for name in names}, "route": dict(row.get("route") or ())}
