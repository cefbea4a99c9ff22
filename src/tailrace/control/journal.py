"""The journal: a pipeline's dead letters, each at most once per sink and event id, within bounds.

    waiting ─┬─▶ replayed | superseded | acknowledged         held: the same, behind a letter of its key
             └─▶ gone: evicted (`drop_oldest`), expired (`max_age_s`), purged by somebody

A letter that is closed keeps its place without its row, so that the batch it came with may come again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from tailrace.contracts.letters import OPEN, Letter, LetterState
from tailrace.control.store import Store
from tailrace.control.tables import dead_letter_totals, dead_letters
from tailrace.control.upsert import insert_missing, printable
from tailrace.errors import SinkError

Overflow = Literal["drop_oldest", "reject", "block"]
"""What follows where there is no room for a letter."""

Condition = sa.ColumnElement[bool]
_AT, _TOTAL = dead_letters.c, dead_letter_totals.c
_OPEN = sa.or_(*(_AT.state == state for state in OPEN))
_MANY = 500
"""Values in one `IN (…)`."""
_FEW = 100
"""Letters in memory at once, where there may be many: each may be large."""
_RENAMED = {"schema": "schema_name", "table": "table_name", "key": "row_key", "row": "packed_row"}


@dataclass(frozen=True)
class JournalBounds:
    """How many letters may be open, how long one is kept (0: for ever), and what follows where there is no room."""

    max_entries: int = 10_000
    max_age_s: int = 604_800
    overflow: Overflow = "drop_oldest"


@dataclass(frozen=True)
class KeptLetter:
    """A letter in the journal, under its number."""

    number: int
    letter: Letter
    attempts: int
    first_us: int
    last_us: int


class LetterPlace(NamedTuple):
    """Where a letter is in its log."""

    number: int
    sink: str
    log_id: str
    seq: int
    schema: str
    table: str
    key: str | None


@dataclass(frozen=True)
class LetterGroup:
    """Letters of one table that one sink did not get for one reason."""

    code: str
    table: str
    sink: str
    state: LetterState
    letters: int
    first_us: int
    last_us: int


@dataclass(frozen=True)
class JournalTotals:
    """Letters by state, and how many are gone for want of room or for their age."""

    states: dict[str, int]
    evicted: int = 0
    expired: int = 0

    @property
    def open(self) -> int:
        return sum(self.states.get(state, 0) for state in OPEN)


@dataclass(frozen=True)
class LetterFilter:
    """Letters that fulfil all that is said. `table` is `schema.table` or a bare name, `key` is JSON text, and times say
    when a letter was first written: `[since_us, until_us)`."""

    sink: str | None = None
    table: str | None = None
    code: str | None = None
    key: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    states: tuple[LetterState, ...] = ()
    numbers: tuple[int, ...] | None = None

    def conditions(self) -> Iterator[Condition]:
        """What SQL asks."""
        for column, value in ((_AT.sink, self.sink), (_AT.code, self.code)):
            if value is not None:
                yield column == value
        if self.key is not None:
            yield _AT.row_key.in_(_spellings(self.key))
        if self.table is not None:
            yield sa.or_(_AT.table_name == self.table, _AT.schema_name + "." + _AT.table_name == self.table)
        if self.since_us is not None:
            yield _AT.first_us >= self.since_us
        if self.until_us is not None:
            yield _AT.first_us < self.until_us
        if self.states:
            yield _AT.state.in_(self.states)
        if self.numbers is not None:
            yield _AT.number.in_(self.numbers)


ALL = LetterFilter()


class Journal:
    """The journal of one pipeline. Usable from several threads and processes of one host."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        bounds: JournalBounds | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.pipeline = store, pipeline
        self.bounds = bounds or JournalBounds()
        self._clock = clock
        self._mine = _AT.pipeline == pipeline

    # -- what sinks do ---------------------------------------------------------------------------------------

    def put(self, letters: Sequence[Letter]) -> None:
        """Durable when it returns; one that is there already counts as another attempt. Raises `dlq.overflow` where
        there is no room and letters are not to be dropped for it; then none was written. Under `block` there is always
        room for the letters of a batch that has begun."""
        now = self._now_us()
        with self.store.transaction() as connection:
            self._expire(connection, now)
            known = self._known(connection, letters)
            fresh = {(each.sink, each.event_id): each for each in letters if (each.sink, each.event_id) not in known}
            self._attempted(connection, [each for each in letters if (each.sink, each.event_id) in known], now)
            self._insert(connection, list(fresh.values()), now)
            self._make_room(connection)

    def refuse_when_full(self) -> None:
        """Raise `dlq.full` where a batch must not begin, because its letters might find no room."""
        if self.bounds.overflow != "block":
            return
        with self.store.transaction() as connection:
            self._expire(connection, self._now_us())
            count = self._count(connection, _OPEN)
        if count >= self.bounds.max_entries:
            raise SinkError(
                "dlq.full",
                f"{count} dead letters are open, and `journal.dlq.max_entries` is {self.bounds.max_entries}",
                hint="the sink waits for room: tailrace dlq replay, ack or purge, or raise `max_entries`",
            )

    def held_keys(self, sink: str) -> list[tuple[str, str, str, int]]:
        """(schema, table, key, first offset) of the keys with an open letter."""
        of_sink = (self._mine, _AT.sink == sink, _OPEN, _AT.row_key.is_not(None))
        query = sa.select(_AT.schema_name, _AT.table_name, _AT.row_key, sa.func.min(_AT.seq)).where(*of_sink)
        with self.store.transaction() as connection:
            found = connection.execute(query.group_by(_AT.schema_name, _AT.table_name, _AT.row_key)).all()
        return [(schema, table, key, seq) for schema, table, key, seq in found]

    def places(self, wanted: LetterFilter) -> list[LetterPlace]:
        """Where letters are, in the log's order. Their rows are not looked at."""
        query = sa.select(_AT.number, _AT.sink, _AT.log_id, _AT.seq, _AT.schema_name, _AT.table_name, _AT.row_key)
        query = query.where(self._mine, *wanted.conditions()).order_by(_AT.seq, _AT.part)
        with self.store.transaction() as connection:
            return [LetterPlace(*row) for row in connection.execute(query)]

    def needed_from(self, sink: str, log_id: str) -> int | None:
        """The first offset of the log that an open letter of the sink has only there."""
        only_there = sa.or_(_AT.packed_row == "", _AT.cut == 1)
        query = sa.select(sa.func.min(_AT.seq)).where(
            self._mine, _AT.sink == sink, _AT.log_id == log_id, _OPEN, only_there
        )
        with self.store.transaction() as connection:
            return connection.execute(query).scalar_one_or_none()

    def totals(self) -> JournalTotals:
        by_state = sa.select(_AT.state, sa.func.count()).where(self._mine).group_by(_AT.state)
        gone = sa.select(_TOTAL.evicted, _TOTAL.expired).where(_TOTAL.pipeline == self.pipeline)
        with self.store.transaction() as connection:
            self._expire(connection, self._now_us())
            states = {state: count for state, count in connection.execute(by_state)}
            evicted, expired = connection.execute(gone).one_or_none() or (0, 0)
        return JournalTotals(states, evicted, expired)

    # -- what people do --------------------------------------------------------------------------------------

    def find(self, wanted: LetterFilter = ALL, limit: int | None = None) -> list[KeptLetter]:
        """The oldest first."""
        query = sa.select(dead_letters).where(self._mine, *wanted.conditions()).order_by(_AT.number).limit(limit)
        with self.store.transaction() as connection:
            return [_kept(row) for row in connection.execute(query)]

    def each(self, wanted: LetterFilter = ALL) -> Iterator[KeptLetter]:
        """The same, few at a time in memory."""
        last = 0
        while True:
            query = sa.select(dead_letters).where(self._mine, *wanted.conditions(), _AT.number > last)
            with self.store.transaction() as connection:
                found = connection.execute(query.order_by(_AT.number).limit(_FEW)).all()
            yield from map(_kept, found)
            if not found:
                return
            last = found[-1].number

    def groups(self, wanted: LetterFilter = ALL) -> list[LetterGroup]:
        """The largest first."""
        place = (_AT.code, _AT.schema_name, _AT.table_name, _AT.sink, _AT.state)
        count = sa.func.count().label("letters")
        query = sa.select(*place, count, sa.func.min(_AT.first_us), sa.func.max(_AT.last_us))
        query = query.where(self._mine, *wanted.conditions()).group_by(*place).order_by(count.desc(), *place)
        with self.store.transaction() as connection:
            rows = connection.execute(query).all()
        return [
            LetterGroup(code, f"{schema}.{table}", sink, state, *rest)
            for code, schema, table, sink, state, *rest in rows
        ]

    def close(self, wanted: LetterFilter, state: LetterState) -> int:
        """Nothing is left to do about these open letters; their rows go. Returns how many there were."""
        ended = sa.update(dead_letters).where(self._mine, _OPEN, *wanted.conditions())
        values = {"state": state, "packed_row": "", "last_us": self._now_us()}
        with self.store.transaction() as connection:
            return connection.execute(ended.values(**values)).rowcount

    def refused_again(self, number: int, code: str, message: str) -> None:
        """A letter that was delivered again came back."""
        again = sa.update(dead_letters).where(self._mine, _AT.number == number, _OPEN)
        values = {"code": code, "message": printable(message), "attempts": _AT.attempts + 1, "last_us": self._now_us()}
        with self.store.transaction() as connection:
            connection.execute(again.values(**values))

    def purge(self, wanted: LetterFilter) -> int:
        """Remove letters, whatever their state, with all that is known of them. Returns how many there were."""
        with self.store.transaction() as connection:
            return connection.execute(sa.delete(dead_letters).where(self._mine, *wanted.conditions())).rowcount

    # -- within a transaction --------------------------------------------------------------------------------

    def _known(self, connection: sa.Connection, letters: Sequence[Letter]) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        ids = [each.event_id for each in letters]
        for some in _pieces(ids):
            query = sa.select(_AT.sink, _AT.event_id).where(self._mine, _AT.event_id.in_(some))
            found |= {(sink, event) for sink, event in connection.execute(query)}
        return found

    def _attempted(self, connection: sa.Connection, letters: Sequence[Letter], now: int) -> None:
        this = (self._mine, _AT.sink == sa.bindparam("of_sink"), _AT.event_id == sa.bindparam("of_event"))
        again = sa.update(dead_letters).where(*this, _OPEN).values(attempts=_AT.attempts + 1, last_us=now)
        if letters:
            connection.execute(again, [{"of_sink": each.sink, "of_event": each.event_id} for each in letters])

    def _insert(self, connection: sa.Connection, letters: Sequence[Letter], now: int) -> None:
        if not letters:
            return
        insert_missing(connection, dead_letter_totals, [{"pipeline": self.pipeline}])
        mine = _TOTAL.pipeline == self.pipeline
        last = connection.execute(sa.select(_TOTAL.last_number).where(mine)).scalar_one()
        ordered = sorted(letters, key=lambda each: (each.seq, each.part))
        times = {"pipeline": self.pipeline, "attempts": 1, "first_us": now, "last_us": now}
        rows = [{**_columns(each), **times, "number": last + place} for place, each in enumerate(ordered, 1)]
        connection.execute(sa.insert(dead_letters), rows)
        connection.execute(sa.update(dead_letter_totals).where(mine).values(last_number=last + len(ordered)))

    def _make_room(self, connection: sa.Connection) -> None:
        over = self._count(connection, _OPEN) - self.bounds.max_entries
        if over <= 0 or self.bounds.overflow == "block":
            return
        if self.bounds.overflow == "reject":
            raise SinkError(
                "dlq.overflow",
                f"there is no room for {over} dead letters: `journal.dlq.max_entries` is {self.bounds.max_entries}",
                hint="nothing of the batch is lost: make room with tailrace dlq replay, ack or purge, and start again",
            )
        oldest = sa.select(_AT.number).where(self._mine, _OPEN).order_by(_AT.number).limit(over)
        last = connection.execute(oldest).scalars().all()[-1]
        self._lose(connection, "evicted", _OPEN, _AT.number <= last)

    def _expire(self, connection: sa.Connection, now: int) -> None:
        if self.bounds.max_age_s:
            old = _AT.first_us < now - self.bounds.max_age_s * 1_000_000
            self._lose(connection, "expired", _OPEN, old)
            connection.execute(sa.delete(dead_letters).where(self._mine, old))

    def _lose(self, connection: sa.Connection, counter: str, *which: Condition) -> None:
        lost = connection.execute(sa.delete(dead_letters).where(self._mine, *which)).rowcount
        if lost:
            counted = sa.update(dead_letter_totals).where(_TOTAL.pipeline == self.pipeline)
            connection.execute(counted.values({counter: _TOTAL[counter] + lost}))

    def _count(self, connection: sa.Connection, *where: Condition) -> int:
        query = sa.select(sa.func.count()).select_from(dead_letters).where(self._mine, *where)
        return connection.execute(query).scalar_one()

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)


def _spellings(text: str) -> set[str]:
    """A JSON text as it is, without blanks, and with those that `json.dumps` writes."""
    try:
        value = json.loads(text)
    except ValueError:
        return {text}
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return {text, compact, json.dumps(value, ensure_ascii=False)}


def _pieces(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _MANY):
        yield values[start : start + _MANY]


def _columns(letter: Letter) -> dict[str, Any]:
    """A letter as its row, but for its number and times."""
    found = {_RENAMED.get(name, name): value for name, value in letter.as_dict().items()}
    return {**found, "cut": int(letter.cut), "message": printable(letter.message)}


_NAMES: Iterable[str] = tuple(field.name for field in fields(Letter))


def _kept(row: sa.Row[Any]) -> KeptLetter:
    values = row._mapping
    letter = Letter(**{name: values[_RENAMED.get(name, name)] for name in _NAMES} | {"cut": bool(values["cut"])})
    return KeptLetter(values["number"], letter, values["attempts"], values["first_us"], values["last_us"])
