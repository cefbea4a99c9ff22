"""The explorer at its own door: what it shows of a log, page by page, and what it never shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import Holds, Subscribers
from tailrace.contracts import Letter
from tailrace.control.journal import Journal
from tailrace.errors import ConfigError
from tailrace.supervisor.explore import Bounds, Explorer, Filter, Page
from tests.supervisor.explore.looking import (
    HASH_KEY,
    MASK,
    NOTES,
    ONLY_PAID,
    ORDERS,
    PLAIN,
    SCREEN,
    Place,
    after,
    every_page,
    offsets,
    order,
)

WIDE = Bounds(seconds=600)
"""For looks that are to end by themselves on any machine."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Offsets 0 to 9: orders, every third of them paid; then an update, a delete, a note, a truncate."""
    place = Place(tmp_path)
    feed = place.feed
    for number in range(10):
        feed.add(ORDERS, "c", order(number, f"{number}.50", "new" if number % 3 else "paid"))
    feed.add(ORDERS, "u", order(1, "700", "paid"))
    feed.add(ORDERS, "d", {"id": 2})
    feed.add(NOTES, "c", {"id": 1, "lang": "de", "text": "secret"})
    feed.add(ORDERS, "t", key=None)
    feed.flush(0)
    return place


def look(explorer: Explorer, wanted: Filter | None = None, **more: Any) -> Page:
    with explorer:
        return explorer.look(wanted or Filter(), bounds=WIDE, **more)


def refused(explorer: Explorer, wanted: Filter | None = None, **more: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        look(explorer, wanted, **more)
    return caught.value


def test_the_newest_come_first_with_all_that_the_source_says(place: Place) -> None:
    page = look(place.explorer(), limit=3)
    assert offsets(page) == [13, 12, 11]
    assert (page.earliest, page.log_end, page.partial) == (0, 14, False)
    deleted = page.entries[2].as_dict()
    assert {
        name: deleted[name] for name in ("op", "table", "key", "before", "after", "tx_id", "position", "tx_last")
    } == {
        **{"op": "d", "table": "public.orders", "key": '{"id": 2}', "before": '{"id": 2}', "after": None},
        **{"tx_id": "11", "position": "0/B", "tx_last": True},
    }
    assert deleted["ts_us"] == 1_700_000_000_000_011
    assert len(deleted["event_id"]) == 36


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(tables=("notes",)), [12]),
        (Filter(tables=("public.n*", "orders"), ops=("delete", "t")), [13, 11]),
        (Filter(ops=("u", "insert"), start=8), [12, 10, 9, 8]),
        (Filter(key="1"), [10, 1]),
        (Filter(key='{"id":1}'), [10, 1]),
        (Filter(key='{"lang":"de","id":1}'), [12]),
        (Filter(start=3, end=6), [5, 4, 3]),
        (Filter(since_us=1_700_000_000_000_005, until_us=1_700_000_000_000_008), [7, 6, 5]),
        (Filter(from_position="0/9", to_position="0/A"), [10, 9]),
        (Filter(where="after.total > 5 and after.status = 'paid'"), [10, 9, 6]),
        (Filter(where="before.id = 2"), [11]),
        (Filter(where="key.lang = 'de'"), [12]),
        (Filter(where="after.id = 99"), []),
    ],
    ids=str,
)
def test_filters(place: Place, wanted: Filter, found: list[int]) -> None:
    with place.explorer() as explorer:
        assert offsets(explorer.look(wanted, bounds=WIDE)) == found
        assert offsets(explorer.look(wanted, order="oldest", bounds=WIDE)) == found[::-1]


@pytest.mark.parametrize(
    ("wanted", "where", "hint"),
    [
        (Filter(where="after.total >"), "character 14", ""),
        (Filter(tables=("a.b.c.d",)), "table", "schema.table"),
        (Filter(ops=("x",)), "op", "use one of"),
        (Filter(key='{"id"'), "key", '{"id": 7}'),
        (Filter(key="{}"), "key", '{"id": 7}'),
        (Filter(start=5, end=4), "offset", "exchange"),
        (Filter(from_position="yesterday"), "position", "copy one"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_understood(place: Place, wanted: Filter, where: str, hint: str) -> None:
    error = refused(place.explorer(), wanted)
    assert (error.code, error.where) == ("explore.filter", where)
    assert hint in error.hint


def test_pages_have_every_change_once_while_the_log_grows(place: Place) -> None:
    with place.explorer() as explorer:
        first = explorer.look(limit=5, bounds=WIDE)
        place.feed.add(ORDERS, "c", order(50)).flush(0)
        second = explorer.look(limit=5, cursor=first.cursor, bounds=WIDE)
        third = explorer.look(limit=5, cursor=second.cursor, bounds=WIDE)
        assert offsets(first) + offsets(second) + offsets(third) == list(range(13, -1, -1))
        assert third.cursor is None
        oldest = every_page(explorer, Filter(), WIDE, limit=4, order="oldest")
        assert [each for page in oldest for each in offsets(page)] == list(range(15))
        place.feed.add(ORDERS, "c", order(51)).flush(0)
        assert offsets(explorer.look(order="oldest", cursor=oldest[-1].cursor, bounds=WIDE)) == [15]


def test_a_cursor_is_good_for_its_own_question_alone(place: Place) -> None:
    wanted = Filter(tables=("orders",))
    sinks = (SCREEN, PLAIN)
    cursor = look(place.explorer(sinks=sinks), wanted, limit=2).cursor
    assert cursor is not None and "orders" not in cursor
    assert offsets(look(place.explorer(sinks=sinks), wanted, limit=1, cursor=cursor)) == [10]
    for error in (
        refused(place.explorer(sinks=sinks), Filter(tables=("order*",)), cursor=cursor),
        refused(place.explorer(sinks=sinks), wanted, order="oldest", cursor=cursor),
        refused(place.explorer(sinks=sinks, sink="plain"), wanted, cursor=cursor),
        refused(place.explorer(sinks=sinks, raw=True), wanted, cursor=cursor),
        *(refused(place.explorer(sinks=sinks), wanted, cursor=bad) for bad in ("x", "", "bnVsbA", cursor[:-2], "e30")),
    ):
        assert error.code == "explore.cursor"


def test_a_bound_ends_a_look_and_its_cursor_goes_on(place: Place) -> None:
    feed = place.feed
    for number in range(1_200):
        feed.add(ORDERS, "c", order(100 + number))
    feed.flush(0)
    wanted = Filter(where="after.id = 3")
    with place.explorer() as explorer:
        page = explorer.look(wanted, bounds=Bounds(changes=1, seconds=600))
        assert (offsets(page), page.partial, page.stopped_by) == ([], True, "changes")
        assert page.scanned.end == 1_214
        assert page.scanned.end - page.scanned.start == page.scanned.changes < 1_214
        pages = every_page(explorer, wanted, Bounds(changes=1, seconds=600))
        assert len(pages) > 2
        assert [each for one in pages for each in offsets(one)] == [3]
        reached = [1_214, *(one.scanned.start for one in pages)]
        assert [one.scanned.end for one in pages] == reached[:-1]
        assert reached[-1] == 0
        late = explorer.look(wanted, bounds=Bounds(seconds=0.0), order="oldest")
        assert (late.partial, late.stopped_by, late.scanned.start) == (True, "time", 0)
        assert late.scanned.changes > 0


def test_what_a_chain_hides_is_seen_with_the_right_alone(place: Place) -> None:
    asked = Filter(where="after.email = 'u1@example.com'")
    page = look(place.explorer(MASK), Filter(ops=("c", "u"), tables=("orders",)))
    assert {row["email"] for row in after(page)} == {"***"}
    assert "example.com" not in json.dumps(page.as_dict())
    assert offsets(look(place.explorer(MASK), asked)) == []  # nor can it be guessed
    raw = look(place.explorer(MASK, raw=True), asked)
    assert (offsets(raw), after(raw)[0]["email"], raw.raw) == ([10, 1], "u1@example.com", True)


def test_a_key_that_a_chain_hides_is_found_by_what_it_became(place: Place) -> None:
    page = look(place.explorer(HASH_KEY), Filter(start=1, end=2))
    [entry] = page.entries
    assert entry.key is not None
    hashed = json.loads(entry.key)["id"]
    assert len(hashed) == 64
    assert offsets(look(place.explorer(HASH_KEY), Filter(key="1"))) == []
    assert offsets(look(place.explorer(HASH_KEY), Filter(key=hashed))) == [10, 1]
    assert offsets(look(place.explorer(HASH_KEY, raw=True), Filter(key="1"))) == [10, 1]


def test_what_is_dropped_is_told_with_its_reason_and_without_its_row(place: Place) -> None:
    page = look(place.explorer(ONLY_PAID, MASK), Filter(start=7, end=10))
    assert [each.key for each in page.entries] == [f'{{"id": {each.offset}}}' for each in page.entries]
    assert [(each.offset, each.dropped and each.dropped.processor) for each in page.entries] == [
        (9, None),
        (8, "paid"),
        (7, "paid"),
    ]
    page = look(place.explorer(ONLY_PAID, HASH_KEY), Filter(start=1, end=2))
    [entry] = page.entries
    told = entry.as_dict()
    assert (told["dropped"]["processor"], told["key"], told["after"]) == ("paid", None, None)
    assert offsets(look(place.explorer(ONLY_PAID, MASK), Filter(key="2"))) == [11, 2]


def test_defaults_of_new_columns_are_values_of_rows(place: Place) -> None:
    place.feed.evolve(ORDERS, {"email": "all@example.com"}).flush(0)
    [masked] = look(place.explorer(MASK), Filter(ops=("s",))).entries
    assert masked.itself is not None and masked.itself.after == '{"version": 1}'
    [raw] = look(place.explorer(MASK, raw=True), Filter(ops=("schema",))).entries
    assert raw.itself is not None and "all@example.com" in str(raw.itself.after)


FAILING = """
def process(event):
    print("heard")
    if event["op"] == "u":
        raise ValueError(event["after"]["email"])
    if event["after"]:
        event["after"]["vip"] = True
    return [event, {**event, "after": {"copy": event["after"]["id"]}}] if event["after"] else event
"""


def test_user_code_runs_apart_and_its_failures_are_shown_one_by_one(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    code = {"type": "python", "id": "mine", "inline": FAILING, "tables": ["orders"]}
    page = look(place.explorer(code), Filter(start=9, end=12))
    assert offsets(page) == [11, 10, 9]
    failed = page.entries[1].failed
    assert failed is not None and failed.code == "processor.failed"
    assert "u1@" not in json.dumps(page.as_dict())
    assert after(page)[2]["vip"] is True
    assert [(each.part, each.after) for each in page.entries[2].made] == [("mine:1", '{"copy":9}')]
    heard = capfd.readouterr()
    assert ("heard" in heard.out, "heard" in heard.err) == (False, True)


def test_user_code_that_never_ends_costs_a_look_its_time_and_no_more(place: Place) -> None:
    code = {"type": "python", "id": "mine", "inline": "def process(event):\n    while True: pass"}
    with place.explorer(code) as explorer:
        page = explorer.look(bounds=Bounds(seconds=0.2))
    assert (offsets(page), page.partial, page.stopped_by, page.scanned.changes > 0) == ([], True, "time", True)


def test_what_became_of_changes_at_each_sink(place: Place) -> None:
    path = place.layout.log("shop")
    Subscribers(path).report("shop/screen", 12, required=True)
    Holds(path, "shop/screen", required=True).hold("public.orders", 5)
    with closing(place.store()) as store:
        Journal(store, "shop").put([letter(place, 4, "plain"), letter(place, 6, "elsewhere", log_id="old")])
    page = look(place.explorer(sinks=(SCREEN, PLAIN)), Filter(start=4))
    sent = {each.offset: each.sinks["screen"].sent for each in page.entries}
    assert sent == {13: False, 12: False, 11: False, 10: False, **dict.fromkeys(range(5, 10), False), 4: True}
    assert {each.sinks["plain"].sent for each in page.entries} == {None}
    letters = {each.offset: each.sinks["plain"].letters for each in page.entries if each.sinks["plain"].letters}
    assert {seq: [(one.number, one.state, one.code) for one in found] for seq, found in letters.items()} == {
        4: [(1, "waiting", "sink.rejected")]
    }


def test_a_note_is_sent_while_its_table_is_not_held(place: Place) -> None:
    path = place.layout.log("shop")
    Subscribers(path).report("shop/screen", 14, required=True)
    Holds(path, "shop/screen", required=True).hold("public.orders", 5)
    Holds(path, "shop/screen", required=True).hold("(dead letters)", 0)
    page = look(place.explorer(), Filter(start=11))
    assert {each.offset: each.sinks["screen"].sent for each in page.entries} == {13: False, 12: True, 11: False}


def test_what_retention_takes_is_told(place: Place) -> None:
    with place.explorer() as explorer:
        first = explorer.look(order="oldest", limit=3, bounds=WIDE)
        begins = place.feed.trim() - 1
        later = explorer.look(order="oldest", cursor=first.cursor, bounds=WIDE)
        assert later.earliest >= begins
        assert later.scanned.start == later.earliest
        assert offsets(later) == list(range(later.earliest, later.log_end))


def test_looking_leaves_no_trace(place: Place) -> None:
    before = sorted(place.layout.root.rglob("*"))
    look(place.explorer(MASK))
    assert sorted(place.layout.root.rglob("*")) == before


def letter(place: Place, seq: int, sink: str, log_id: str = "") -> Letter:
    given = {"source": "shop", "op": "c", "schema": "public", "table": "orders", "key": None, "schema_id": 1}
    return Letter(
        sink=sink,
        processor="",
        log_id=log_id or place.feed.log_id,
        seq=seq,
        part="",
        event_id=f"{sink}-{seq}",
        position="0/1",
        ts_us=1,
        code="sink.rejected",
        message="no",
        **given,  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    import multiprocessing

    yield
    assert multiprocessing.active_children() == []
