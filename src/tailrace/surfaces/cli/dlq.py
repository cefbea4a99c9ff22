"""`tailrace dlq`: the dead letters of a pipeline, also while it runs."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import instant, moment

if TYPE_CHECKING:
    from tailrace.control.journal import KeptLetter, LetterFilter
    from tailrace.supervisor.letters import LetterService, ReplayProgress

dlq = typer.Typer(help="Dead letters: look at them, close them, deliver them again.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")]
Numbers = Annotated[list[int] | None, typer.Argument(help="Letters, by their numbers.", metavar="[NUMBER]...")]
PlatformConfig = Annotated[Path | None, typer.Option(help="The platform document.")]
SinkOption = Annotated[str | None, typer.Option(help="Only letters of this sink.")]
TableOption = Annotated[str | None, typer.Option(help="Only letters of this table, `schema.table` or a bare name.")]
CodeOption = Annotated[str | None, typer.Option(help="Only letters with this error code.")]
KeyOption = Annotated[str | None, typer.Option(help="Only letters of this row, by its key as JSON.")]
SinceOption = Annotated[
    str | None, typer.Option(help="Only letters first written since: an ISO 8601 time, or how long ago (`2h`).")
]
UntilOption = Annotated[str | None, typer.Option(help="Only letters first written before, told the same way.")]
StateOption = Annotated[
    list[str] | None, typer.Option(help="waiting, held, replayed, superseded or acknowledged. Absent: open ones.")
]
All = Annotated[bool, typer.Option("--all", help="Every letter, where nothing else says which.")]

POLL_S = 0.5
SHOWN_LETTERS = 100


@dlq.command("list")
def list_letters(
    file: File,
    *,
    sink: SinkOption = None,
    table: TableOption = None,
    code: CodeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    state: StateOption = None,
    letters: Annotated[bool, typer.Option("--letters", help="Each letter, instead of groups.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many letters, at most.")] = SHOWN_LETTERS,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Print letters by code, table and sink, or one by one, the oldest first."""
    with guard(as_json):
        service = _service(file, platform_config)
        wanted = _filter(None, sink, table, code, key, since, until, state or ["waiting", "held"])
        if letters:
            _tell_letters(service.find(wanted, limit), as_json)
        else:
            _tell_groups(service, wanted, as_json)


@dlq.command()
def show(
    file: File,
    number: Annotated[int, typer.Argument(help="The letter's number.")],
    *,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Print all that is kept of a letter."""
    with guard(as_json):
        from tailrace.supervisor.letters import told_whole

        whole = told_whole(_service(file, platform_config).get(number))
    if as_json:
        say_json({"ok": True, "letter": whole})
        return
    change = whole.pop("change")
    for name, value in whole.items():
        if name not in {"record", "key"} and value not in ("", None):
            say(f"{name:<12}{moment(value) if name.endswith('_us') else value}")
    if change is None:
        say("the processor failed before there was a record: the change is in the log, which is held for it")
        return
    for name in ("key", "before", "after", "unchanged", "headers"):
        if change.get(name) is not None:
            say(f"{name:<12}{json.dumps(change[name], ensure_ascii=False)}")
    if whole["record"] is not None:
        say(f"{'record':<12}{whole['record']}")


@dlq.command()
def ack(
    file: File,
    numbers: Numbers = None,
    *,
    sink: SinkOption = None,
    table: TableOption = None,
    code: CodeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    every: All = False,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Close open letters: nothing is to be done about them. Their rows go, and their place stays until they are old."""
    with guard(as_json):
        wanted = _filter(numbers, sink, table, code, key, since, until, None)
        _refuse_everything(wanted, every=every)
        count = _service(file, platform_config).acknowledge(wanted)
    _tell_count("acknowledged", count, as_json)


@dlq.command()
def purge(
    file: File,
    numbers: Numbers = None,
    *,
    sink: SinkOption = None,
    table: TableOption = None,
    code: CodeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    state: StateOption = None,
    every: All = False,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Remove letters, open or closed, with all that is known of them."""
    with guard(as_json):
        wanted = _filter(numbers, sink, table, code, key, since, until, state)
        _refuse_everything(wanted, every=every)
        count = _service(file, platform_config).purge(wanted)
    _tell_count("purged", count, as_json)


@dlq.command()
def export(
    file: File,
    *,
    sink: SinkOption = None,
    table: TableOption = None,
    code: CodeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    state: StateOption = None,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Print letters with all that is kept of them, one JSON object a line; with --json as the others do."""
    with guard(as_json):
        from tailrace.supervisor.letters import told_whole

        wanted = _filter(None, sink, table, code, key, since, until, state or ["waiting", "held"])
        found = map(told_whole, _service(file, platform_config).each(wanted))
        if as_json:
            say_json({"ok": True, "letters": list(found)})
            return
        for each in found:
            say_json(each)


@dlq.command()
def replay(
    file: File,
    numbers: Numbers = None,
    *,
    sink: SinkOption = None,
    table: TableOption = None,
    code: CodeOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    execute: Annotated[
        str | None, typer.Option(metavar="REPLAY", help="Carry out what an earlier dry run has chosen, by its id.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Deliver also letters that a newer change of their key has overtaken.")
    ] = False,
    rate: Annotated[int | None, typer.Option(min=1, help="How many letters a second, at most.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Watch until it is done.")] = True,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Choose letters and say what a replay would do to each, or carry such a choice out. A running pipeline does it
    between two batches; without one it is done here."""
    with guard(as_json):
        service = _service(file, platform_config)
        wanted = _filter(numbers, sink, table, code, key, since, until, None)
        if execute is None:
            _tell_replay(service.dry_run(wanted), as_json)
            return
        _refuse_choice(wanted)
        found = service.carry_out(execute, forced=force, rate=rate)
        while wait and found.working and not found.over:
            time.sleep(POLL_S)
            found = service.progress(execute)
    _tell_replay(found, as_json)
    if found.replay.state == "failed":
        raise typer.Exit(1)


def _service(file: Path, platform_config: Path | None) -> LetterService:
    from tailrace.spec import load_pipelines, load_platform
    from tailrace.supervisor.letters import LetterService

    [pipeline] = load_pipelines([file])
    return LetterService(pipeline, load_platform(platform_config))


def _filter(
    numbers: list[int] | None,
    sink: str | None,
    table: str | None,
    code: str | None,
    key: str | None,
    since: str | None,
    until: str | None,
    states: list[str] | None,
) -> LetterFilter:
    from typing import cast, get_args

    from tailrace.contracts import LetterState
    from tailrace.control.journal import LetterFilter
    from tailrace.errors import ConfigError

    for state in states or ():
        if state not in get_args(LetterState):
            hint = f"use one of {', '.join(get_args(LetterState))}"
            raise ConfigError("dlq.no_state", f"there is no state {state!r}", hint=hint)
    chosen = tuple(numbers) if numbers else None
    named = cast(tuple[LetterState, ...], tuple(states or ()))
    return LetterFilter(
        sink, table, code, key, instant(since, "dlq.bad_time"), instant(until, "dlq.bad_time"), named, chosen
    )


def _refuse_everything(wanted: LetterFilter, *, every: bool) -> None:
    from tailrace.control.journal import ALL
    from tailrace.errors import ConfigError

    if wanted == ALL and not every:
        hint = "give numbers or a filter, or --all for every letter"
        raise ConfigError("dlq.no_choice", "which letters?", hint=hint)


def _refuse_choice(wanted: LetterFilter) -> None:
    from tailrace.control.journal import ALL
    from tailrace.errors import ConfigError

    if wanted != ALL:
        hint = "leave numbers and filters out: --execute takes what its dry run chose, and nothing else"
        raise ConfigError("dlq.two_choices", "a replay has its letters already", hint=hint)


def _tell_letters(found: list[KeptLetter], as_json: bool) -> None:
    from tailrace.supervisor.letters import told

    if as_json:
        say_json({"ok": True, "letters": [told(kept) for kept in found]})
        return
    for kept in found:
        letter = kept.letter
        by = f" by {letter.processor}" if letter.processor else ""
        say(
            f"{kept.number}  {moment(kept.first_us)}  {letter.state}  {letter.sink}  {letter.table_name}  {letter.op}  "
            f"{letter.key or '(no key)'}  {letter.code}{by}: {letter.message}"
        )


def _tell_groups(service: LetterService, wanted: LetterFilter, as_json: bool) -> None:
    groups, totals = service.groups(wanted), service.totals()
    if as_json:
        counted: dict[str, Any] = {name: value for name, value in asdict(totals).items() if name != "groups"}
        counted["open"] = totals.open
        say_json({"ok": True, "groups": [asdict(each) for each in groups], "totals": counted})
        return
    for each in groups:
        times = f"{moment(each.first_us)} to {moment(each.last_us)}"
        say(f"{each.letters:,}  {each.code}  {each.table}  {each.sink}  {each.state}  {times}")
    say(f"{totals.open:,} open; {totals.evicted:,} evicted for want of room, {totals.expired:,} expired")


def _tell_count(what: str, count: int, as_json: bool) -> None:
    if as_json:
        say_json({"ok": True, what: count})
    else:
        say(f"{what} {count:,} letters")


def _tell_replay(found: ReplayProgress, as_json: bool) -> None:
    if as_json:
        letters = [asdict(each) for each in found.letters]
        say_json(
            {
                "ok": found.replay.state != "failed",
                "replay": asdict(found.replay),
                "counts": found.counts(),
                "letters": letters,
            }
        )
        return
    for each in found.letters:
        why = f": {each.reason}" if each.reason else ""
        say(f"letter {each.number} ({each.sink}): {each.outcome or 'would be ' + _FUTURE[each.verdict]}{why}")
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(found.counts().items())) or "no letters"
    say(f"replay {found.replay.id} {found.replay.state}: {counts}")
    if found.replay.state == "frozen":
        say(f"nothing was delivered. Carry it out with: --execute {found.replay.id}")
    elif found.replay.state == "requested":
        say("it goes on in the pipeline's process; run the command again to see how far it is")
    if found.replay.error:
        say(found.replay.error, color="red")


_FUTURE = {"deliver": "delivered", "supersede": "superseded", "refuse": "refused"}
