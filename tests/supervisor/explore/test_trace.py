"""One row's story at its own door: its changes in every file of the log, and where they have come to."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.changelog import LogWriter, Subscribers
from tailrace.errors import ConfigError
from tailrace.sinks.lake.ledger import Entry, TableLedger
from tailrace.supervisor.explore import Bounds, Filter
from tailrace.supervisor.explore.trace import Trace, trace
from tailrace.supervisor.verify.report import TableReport, save
from tailrace.testing.captures import Row, capture
from tailrace.testing.feed import schema_of
from tests.supervisor.explore.looking import HASH_KEY, MASK, NOTES, ORDERS, SCREEN, Place, offsets, order

WIDE = Bounds(changes=1_000_000, seconds=600)
LAKE = {"type": "delta", "config": {"id": "lake", "path": "/tmp/lake"}}
KEYLESS = schema_of(5, "events", {"id": "bigint"}, ())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """0 to 4: a row comes, changes, moves to another key; 5: the table is truncated; 6: it comes again. Many others
    are before, between and behind, in files of their own."""
    place = Place(tmp_path)
    moved = {"new_key": '{"id":8}'}, {"old_key": '{"id":7}'}
    story = [
        Row("c", {"id": 7}, after=order(7), table=ORDERS),
        Row("u", '{ "id": 7 }', after=order(7, "9"), table=ORDERS),
        Row("c", {"id": 77}, after=order(77), table=ORDERS),
        Row("d", {"id": 7}, before={"id": 7}, table=ORDERS, headers=moved[0]),
        Row("c", {"id": 8}, after=order(8), table=ORDERS, headers=moved[1]),
        Row("t", None, table=ORDERS),
        Row("c", {"id": 7}, after=order(7, "11"), table=ORDERS),
        Row("c", {"id": 7, "lang": "de"}, after={"id": 7, "lang": "de", "text": "x"}, table=NOTES),
        Row("c", None, after={"id": 7}, table=KEYLESS),
    ]
    with closing(LogWriter(place.layout.log("shop"), "shop", segment_bytes=1, manifest_bytes=1)) as writer:
        for number, row in enumerate(story):
            others = [Row("c", {"id": 1000 + number}, after=order(1000 + number), table=ORDERS)] * 3
            writer.append(capture([*others, row], first_xid=number + 1))
    return place


MINE = [3, 7, 15, 23, 27]
"""Where the changes of row 7, and the truncate, are."""


def traced(place: Place, table: str, key: str, *processors: object, raw: bool = False) -> Trace:
    with place.explorer(*processors, raw=raw) as explorer:
        return trace(explorer, table, key, bounds=WIDE)


@pytest.mark.parametrize("key", ["7", '{"id": 7}', '{"id":7}', '{"id":"7"}'])
def test_every_change_of_the_row_however_its_key_is_spelled(place: Place, key: str) -> None:
    found = traced(place, "orders", key)
    assert (found.table, offsets(found.page)) == ("public.orders", MINE)
    assert [each.op for each in found.page.entries] == ["c", "u", "d", "t", "c"]
    moved = found.page.entries[2].itself
    assert moved is not None and dict(moved.headers) == {"new_key": '{"id":8}'}
    assert (found.page.cursor, found.page.partial) != (None, True)


def test_a_key_of_two_columns_and_tables_by_their_full_names(place: Place) -> None:
    assert offsets(traced(place, "public.notes", '{"lang": "de", "id": 7}').page) == [31]
    assert offsets(traced(place, "shop.public.orders", "8").page) == [19, 23]


@pytest.mark.parametrize(
    ("table", "key", "code", "hint"),
    [
        ("public.order", "7", "explore.no_table", "did you mean `public.orders`?"),
        ("notes", "7", "explore.no_key", '{"id": "…", "lang": "…"}'),
        ("notes", '{"id": 7}', "explore.no_key", '{"id": "…", "lang": "…"}'),
        ("events", "7", "explore.no_key", "--where"),
        ("orders", '{"id"', "explore.filter", '{"id": 7}'),
    ],
)
def test_what_cannot_be_traced(place: Place, table: str, key: str, code: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        traced(place, table, key)
    assert caught.value.code == code
    assert hint in caught.value.hint


def test_a_hidden_key_is_traced_by_what_it_became_or_with_the_right(place: Place) -> None:
    assert offsets(traced(place, "orders", "7", HASH_KEY).page) == [23]  # the truncate is everybody's
    key = str(traced(place, "orders", "7", HASH_KEY, raw=True).page.entries[0].key)
    assert (key, offsets(traced(place, "orders", "7", HASH_KEY, raw=True).page)) == ('{"id":7}', MINE)
    with place.explorer(HASH_KEY) as explorer:
        [entry] = explorer.look(Filter(start=3, end=4), bounds=WIDE).entries
        hashed = json.loads(str(entry.key))["id"]
        assert offsets(trace(explorer, "orders", hashed, bounds=WIDE).page) == MINE
    assert "u7@" not in json.dumps(traced(place, "orders", "7", MASK).as_dict())


def test_a_bound_leaves_the_rest_for_the_cursor(place: Place) -> None:
    with place.explorer() as explorer:
        pages = [trace(explorer, "orders", "7", bounds=Bounds(changes=1, seconds=600)).page]
        while pages[-1].partial:
            pages.append(trace(explorer, "orders", "7", cursor=pages[-1].cursor, bounds=WIDE).page)
    assert len(pages) > 1
    assert [seq for page in pages for seq in offsets(page)] == MINE


def test_how_far_each_change_has_come(place: Place) -> None:
    log_id = place.feed.log_id
    pipeline = place.pipeline(SCREEN, LAKE)
    Subscribers(place.layout.log("shop")).report("shop/lake", 20, required=True)
    folder = place.layout.sink(pipeline.name, "lake")
    folder.mkdir(parents=True)
    TableLedger(folder / "tables.json", log_id).move(20, {"public.orders": Entry(10, "it has a column of its own")})
    report = TableReport("lake", "public.orders", rows=3, offset=8, position="0/2", at_us=1)
    save(place.layout.verified("shop", "lake"), log_id, [report])
    with place.explorer(sinks=(SCREEN, LAKE)) as explorer:
        found = trace(explorer, "orders", "7", bounds=WIDE)
    told = {each["offset"]: each["sinks"]["lake"] for each in found.as_dict()["changes"]}
    assert [(seq, one["sent"], one["lake"], one["verified"]) for seq, one in told.items()] == [
        (3, True, "committed", "equal"),
        (7, True, "committed", "equal"),
        (15, True, "waiting", "later"),
        (23, False, "waiting", "later"),
        (27, False, "waiting", "later"),
    ]
    screen, lake = found.sinks
    assert (screen.reached, screen.lake(3), screen.verdict(3)) == (None, "unknown", "unknown")
    assert (lake.reached, lake.mark, lake.halted) == (20, 10, "it has a column of its own")


def test_what_was_verified_of_another_log_says_nothing(place: Place) -> None:
    place.pipeline()
    report = TableReport("screen", "public.orders", rows=3, offset=8, position="0/2", at_us=1)
    save(place.layout.verified("shop", "screen"), "another", [report])
    assert traced(place, "orders", "7").sinks[0].verdict(3) == "unknown"
