"""Dead letters of a pipeline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from tailrace.contracts.letters import OPEN
from tailrace.control.journal import KeptLetter, LetterFilter
from tailrace.errors import ConfigError
from tailrace.supervisor.letters import ReplayProgress, told, told_whole
from tailrace.surfaces.rest.access import Caller, Operator, Viewer
from tailrace.surfaces.rest.pipelines import MOST, Limit, Name, Use
from tailrace.surfaces.rest.shapes import Answer

router = APIRouter(tags=["dead letters"], prefix="/pipelines/{name}/journal/dlq")
SHOWN = 50

SinkQuery = Annotated[str | None, Query(description="Only letters of this sink.")]
TableQuery = Annotated[str | None, Query(description="Only letters of this table, `schema.table` or a bare name.")]
CodeQuery = Annotated[str | None, Query(description="Only letters with this error code.")]
KeyQuery = Annotated[str | None, Query(description="Only letters of this row, by its key as JSON.")]


class Group(Answer):
    """Letters of one table that one sink did not get for one reason."""

    code: str
    table: str
    sink: str
    state: str
    letters: int
    first_us: int
    last_us: int


class Count(Answer):
    count: int


class Acked(Answer):
    acked: int


class Purged(Answer):
    purged: int


class Acknowledgement(Answer):
    """Which letters to close: by number, up to a number, or by what they have in common."""

    up_to_seq: int | None = Field(default=None, ge=1, description="All up to this number.")
    numbers: list[int] | None = Field(default=None, max_length=MOST)
    sink: str | None = None
    table: str | None = None
    code: str | None = None


class ReplayRequest(Answer):
    """Which letters to deliver again."""

    numbers: list[int] | None = Field(default=None, max_length=MOST)
    sink: str | None = None
    table: str | None = None
    code: str | None = None
    key: str | None = None


class ReplayOrder(Answer):
    """How to deliver what a dry run chose."""

    forced: bool = Field(default=False, description="Also letters that a newer delivery has overtaken.")
    rate: int | None = Field(default=None, ge=1, description="Letters a second, at most.")


class ReplayShown(Answer):
    """A replay: what was chosen, and what became of it."""

    id: str
    state: str
    working: bool
    counts: dict[str, int]
    letters: list[dict[str, Any]]


@router.get("")
def letters(
    name: Name,
    service: Use,
    caller: Viewer,
    limit: Limit = SHOWN,
    sink_id: SinkQuery = None,
    error_kind: CodeQuery = None,
    table: TableQuery = None,
    key: KeyQuery = None,
    every: Annotated[bool, Query(description="Closed ones too.")] = False,
) -> list[dict[str, Any]]:
    """Open letters, the oldest first; filters come before the limit."""
    wanted = LetterFilter(sink_id, table, error_kind, key, states=() if every else OPEN)
    return [_seen(told(each), caller) for each in service.letters(name).find(wanted, limit)]


@router.get("/groups")
def groups(name: Name, service: Use, caller: Viewer, sink_id: SinkQuery = None) -> list[Group]:
    """Open letters by code, table and sink."""
    found = service.letters(name).groups(LetterFilter(sink=sink_id, states=OPEN))
    return [Group(**asdict(each)) for each in found]


@router.get("/count")
def count(name: Name, service: Use, caller: Viewer) -> Count:
    """How many are open."""
    return Count(count=service.letters(name).totals().open)


@router.get("/letters/{number}")
def letter(name: Name, number: int, service: Use, caller: Viewer) -> dict[str, Any]:
    """All that is kept of one. The values of its row are for callers with that right."""
    kept: KeptLetter = service.letters(name).get(number)
    return _seen(told_whole(kept), caller)


@router.post("/ack")
def acknowledge(name: Name, wanted: Acknowledgement, service: Use, caller: Operator) -> Acked:
    """Close open letters: nothing is to be done about them."""
    desk = service.letters(name)
    numbers = None if wanted.numbers is None else tuple(wanted.numbers)
    chosen = LetterFilter(wanted.sink, wanted.table, wanted.code, states=OPEN, numbers=numbers)
    if wanted.up_to_seq is not None:
        known = (each.number for each in desk.each(chosen))
        chosen = LetterFilter(numbers=tuple(number for number in known if number <= wanted.up_to_seq))
    elif chosen == LetterFilter(states=OPEN):
        hint = "name numbers, `up_to_seq`, a sink, a table or a code"
        raise ConfigError("dlq.which", "this says nothing about which letters", hint=hint, where="body")
    return Acked(acked=desk.acknowledge(chosen))


@router.delete("")
def purge(
    name: Name,
    service: Use,
    caller: Operator,
    sink_id: SinkQuery = None,
    table: TableQuery = None,
    error_kind: CodeQuery = None,
) -> Purged:
    """Remove letters, whatever their state."""
    return Purged(purged=service.letters(name).purge(LetterFilter(sink_id, table, error_kind)))


@router.post("/replays")
def dry_run(name: Name, wanted: ReplayRequest, service: Use, caller: Operator) -> ReplayShown:
    """Choose open letters, and say what would happen to each. Nothing else happens."""
    numbers = None if wanted.numbers is None else tuple(wanted.numbers)
    chosen = LetterFilter(wanted.sink, wanted.table, wanted.code, wanted.key, numbers=numbers)
    return _replay(service.letters(name).dry_run(chosen))


@router.get("/replays/{replay}")
def replay(name: Name, replay: str, service: Use, caller: Viewer) -> ReplayShown:
    """How far a replay is."""
    return _replay(service.letters(name).progress(replay))


@router.post("/replays/{replay}/execute")
def execute(name: Name, replay: str, order: ReplayOrder, service: Use, caller: Operator) -> ReplayShown:
    """Deliver what the dry run chose, and nothing else. The pipeline must run."""
    return _replay(service.replay(name, replay, forced=order.forced, rate=order.rate))


def _replay(progress: ReplayProgress) -> ReplayShown:
    return ReplayShown(
        id=progress.replay.id,
        state=progress.replay.state,
        working=progress.working,
        counts=progress.counts(),
        letters=[asdict(each) for each in progress.letters],
    )


def _seen(letter: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Without the values of its row, unless the caller may see them."""
    if caller.sees_values:
        return letter
    return {name: None if name in ("key", "change", "record") else value for name, value in letter.items()}
