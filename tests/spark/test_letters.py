"""Dead letters of a query: what is refused is durable before its batch is committed, once, and nothing else waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.change import event_id
from tailrace.changelog import Subscribers
from tailrace.contracts import Letter, Place, Processor
from tailrace.contracts.letters import unpacked
from tailrace.control import Store
from tailrace.control.journal import Journal, JournalBounds, LetterFilter
from tailrace.control.replays import ChosenLetter, Replays
from tailrace.errors import SinkError, SparkError
from tailrace.failpoints import arm, disarm
from tailrace.processors.outcome import Outcome
from tailrace.processors.transform import TransformProcessor
from tailrace.processors.user_code import Code, Piece, UserCode, UserError, taken
from tailrace.spark.letters import HOLD, LetterKeeping, of_letter
from tailrace.spark.query import Dropped, Skipped
from tailrace.spark.replay import Redelivery
from tailrace.spec import Sharding
from tests.processors.steps import Echo
from tests.spark.sinks import RefusingSink, read_commits, read_lines, refuse
from tests.spark.stage import DELIVERY, PATIENCE_S, Stage, wait_until

ORDERS = "public.orders"


class Picky(UserCode):
    """Fails for rows whose `n` is one of these, and says so with the value in its own words."""

    refuses: tuple[int, ...]

    def load(self, place: Place) -> Code:
        return _Picky(self.refuses)


class _Picky:
    def __init__(self, refuses: tuple[int, ...]) -> None:
        self._refuses = refuses

    def call(self, batch: Any, piece: Piece) -> Outcome:
        for text in taken(batch, piece).column("after").to_pylist():
            assert text is not None
            if json.loads(text)["n"] in self._refuses:
                raise UserError("does not like it", said=text)
        return Outcome()


def _fail() -> None:
    raise RuntimeError("died")  # a batch is no place for what is no Exception: the JVM would wait for ever


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Callable[..., Journal]]:
    with closing(Store(tmp_path / "control.db")) as store:
        yield lambda **bounds: Journal(store, "shop-feed", JournalBounds(**bounds))


@pytest.fixture
def sink(stage: Stage) -> Callable[..., RefusingSink]:
    return lambda **settings: RefusingSink(id="lines", directory=str(stage.out), **settings)


Open = Callable[..., Journal]
Make = Callable[..., RefusingSink]


def numbers(stage: Stage) -> list[int]:
    return sorted(line["n"] for line in read_lines(stage.out))


def letters(journal: Journal, **wanted: Any) -> list[Letter]:
    return [kept.letter for kept in journal.find(LetterFilter(**wanted))]


def image(letter: Letter) -> Any:
    return json.loads(unpacked(letter.row).column("after")[0].as_py())


@pytest.mark.parametrize("sharding", [None, Sharding(key="n", count=2)])
def test_a_refused_record_becomes_a_letter_and_the_others_go_on(
    sharding: Sharding | None, stage: Stage, sink: Make, journal: Open
) -> None:
    refuse(stage.out, 3, 5001)
    end = stage.shop.commit(4, 6000)
    desk = journal()
    query = stage.start(sink(), letters=LetterKeeping(desk), sharding=sharding)
    stage.delivered(query, end)
    assert numbers(stage) == [n for n in range(1, end + 1) if n not in (3, 5001)]
    first, second = letters(desk)
    assert (first.sink, first.seq, first.op, first.table_name, first.code) == ("lines", 2, "u", ORDERS, "sink.rejected")
    assert (first.message, first.state, first.processor) == ("3 is not wanted (lines)", "waiting", "")
    assert first.event_id == event_id("shop", "0/0", 2) and json.loads(first.key or "") == {"id": 3}
    assert image(second)["n"] == 5001
    record = unpacked(first.row).column("value")[0].as_py()
    assert json.loads(record)["after"]["n"] == 3
    assert query.progress().tables[ORDERS].rows == end - 2


def test_without_a_journal_the_sink_stops_with_the_records_error(stage: Stage, sink: Make) -> None:
    refuse(stage.out, 3)
    stage.shop.commit(4)
    query = stage.start(sink())
    with pytest.raises(SinkError, match="3 is not wanted"):
        wait_until(lambda: False, query)
    assert read_commits(stage.out) == []


def test_what_is_skipped_is_counted(stage: Stage, sink: Make) -> None:
    refuse(stage.out, 3)
    end = stage.shop.commit(4)
    query = stage.start(sink(on_error="skip"))
    stage.delivered(query, end)
    assert numbers(stage) == [1, 2, 4]
    assert query.progress().skipped == {Skipped(ORDERS, "sink.rejected"): 1}
    assert query.progress().tables[ORDERS].rows == 3


def test_a_batch_that_dies_before_its_commit_has_its_letters_once(stage: Stage, sink: Make, journal: Open) -> None:
    """The letters are durable, the batch is not: it comes again, and the journal knows them."""
    refuse(stage.out, 3)
    end = stage.shop.commit(4)
    desk = journal()
    arm("dlq.letters.durable", _fail)
    try:
        query = stage.start(sink(marks=True), letters=LetterKeeping(desk))
        with pytest.raises(SparkError):
            wait_until(lambda: False, query)
    finally:
        disarm("dlq.letters.durable")
    assert [letter.seq for letter in letters(desk)] == [2] and read_commits(stage.out) == []
    again = stage.start(sink(marks=True), letters=LetterKeeping(desk))
    stage.delivered(again, end)
    [kept] = desk.find()
    assert (kept.letter.seq, kept.attempts) == (2, 2)
    assert read_commits(stage.out)[-1][:2] == [0, end]


def test_a_processor_that_fails_leaves_a_letter_without_values_and_holds_the_log(
    stage: Stage, sink: Make, journal: Open
) -> None:
    end = stage.shop.commit(4)
    desk = journal()
    picky = Picky(id="picky", refuses=(3,), on_error="dlq")
    query = stage.start(sink(), letters=LetterKeeping(desk), processors=(picky,))
    stage.delivered(query, end)
    assert numbers(stage) == [1, 2, 4]
    [letter] = letters(desk)
    assert (letter.processor, letter.code, letter.message) == ("picky", "processor.failed", "'picky' does not like it")
    assert (letter.seq, letter.row, json.loads(letter.key or "")) == (2, "", {"id": 3})
    held = {each.name: (each.offset, each.required) for each in Subscribers(stage.shop.path).all()}
    assert held["shop-feed/lines/(dead letters)"] == (2, True)
    assert query.progress().dropped == {Dropped(ORDERS, "picky", "dead_letter"): 1}


def test_a_letter_has_nothing_of_what_its_chain_hides(stage: Stage, sink: Make, journal: Open) -> None:
    """Neither before the mask, where the processor failed, nor behind it, where the target refused."""
    refuse(stage.out, 4)
    end = stage.shop.commit(4, pad="secret")
    desk = journal()
    mask = TransformProcessor.model_validate({"id": "mask", "mask": [{"columns": ["pad", "id"]}]})
    chain: tuple[Processor, ...] = (Picky(id="picky", refuses=(3,), on_error="dlq"), mask)
    query = stage.start(sink(), letters=LetterKeeping(desk), processors=chain)
    stage.delivered(query, end)
    failed, refused = letters(desk)
    assert (failed.key, failed.row) == (None, "")
    assert image(refused) == {"id": "***", "n": 4, "pad": "***"} and json.loads(refused.key or "") == {"id": "***"}
    assert b"secret" not in (stage.directory / "control.db").read_bytes()


def test_a_mended_processor_gets_what_the_log_was_held_for(stage: Stage, sink: Make, journal: Open) -> None:
    """Between two batches, behind the chain of now. What it fails for again stays."""
    end = stage.shop.commit(6)
    desk = journal()
    lines = sink()
    failing = (Picky(id="picky", refuses=(3, 4), on_error="dlq"), Echo(id="behind"))
    first = stage.start(lines, letters=LetterKeeping(desk), processors=failing)
    stage.delivered(first, end)
    assert first.drain(PATIENCE_S)
    mended = (Picky(id="picky", refuses=(4,), on_error="dlq"), Echo(id="behind"))
    query = stage.start(lines, letters=LetterKeeping(desk), processors=mended)
    replays = Replays(desk.store, "shop-feed")
    chosen = [ChosenLetter(kept.number, "lines", "deliver", "") for kept in desk.find()]
    replay = replays.request(replays.freeze(chosen).id, forced=False, rate=None)
    before = len(read_lines(stage.out))
    Redelivery(desk, replays, lines, DELIVERY, stage.shop.path, query.between_batches, query.rows_of).carry_out(
        replay, lambda seconds: False
    )
    outcomes = Counter(each.outcome for each in replays.letters(replay.id))
    again = [line["value"]["event_id"] for line in read_lines(stage.out)[before:]]
    parts = {(letter.seq, letter.part) for letter in letters(desk, states=("replayed",))}
    assert parts == {(2, "")} and outcomes == {"replayed": 1, "rejected": 1}
    made = [event_id("shop", "0/0", 2, part) for part in (None, "behind:1")]
    assert sorted(again) == sorted(made)
    needed = {each.offset for each in Subscribers(stage.shop.path).all() if HOLD in each.name}
    assert needed == {3}


@pytest.mark.parametrize(
    ("part", "of", "expected"),
    [
        ("", "", True),
        ("behind:1", "", True),
        ("picky:2", "", True),
        ("before:1", "", False),
        ("before:1", "before:1", True),
        ("before:1/behind:1", "before:1", True),
        ("behind:1", "before:1", False),
        ("unknown:1", "", False),
    ],
)
def test_what_other_processors_made_before_was_delivered_then(part: str, of: str, *, expected: bool) -> None:
    letter = Letter(
        sink="lines",
        processor="picky",
        source="shop",
        log_id="log",
        seq=2,
        part=of,
        event_id="event",
        op="u",
        schema="public",
        table="orders",
        key=None,
        schema_id=0,
        position="0/0",
        ts_us=0,
        code="processor.failed",
        message="",
    )
    assert of_letter(part, letter, ["before", "picky", "behind"]) is expected


def test_a_large_letter_is_kept_without_its_values(stage: Stage, sink: Make, journal: Open) -> None:
    refuse(stage.out, 2)
    end = stage.shop.commit(3, pad="x" * 5_000)
    desk = journal()
    query = stage.start(sink(), letters=LetterKeeping(desk, max_event_bytes=4_000))
    stage.delivered(query, end)
    [letter] = letters(desk)
    row = unpacked(letter.row)
    assert letter.cut and row.column("after")[0].as_py() is row.column("value")[0].as_py() is None
    assert any(each.offset == 1 for each in Subscribers(stage.shop.path).all() if "dead letters" in each.name)


def test_a_target_that_refuses_nearly_all_stops_the_sink_instead(stage: Stage, sink: Make, journal: Open) -> None:
    refuse(stage.out, *range(10, 60))
    stage.shop.commit(60)
    desk = journal()
    query = stage.start(sink(), letters=LetterKeeping(desk))
    with pytest.raises(SinkError, match="10 is not wanted") as caught:
        wait_until(lambda: False, query)
    assert caught.value.code == "sink.too_many_rejected"
    assert letters(desk) == [] and read_commits(stage.out) == []
    patient = stage.start(sink(max_rejected_share=1.0), letters=LetterKeeping(desk))
    stage.delivered(patient, 60)
    assert len(letters(desk)) == 50


def test_small_batches_that_are_refused_in_a_row_stop_it_too(stage: Stage, sink: Make, journal: Open) -> None:
    refuse(stage.out, *range(1, 100))
    desk = journal()
    query = stage.start(sink(), letters=LetterKeeping(desk))
    with pytest.raises(SinkError, match="in a row"):
        for _ in range(5):
            stage.delivered(query, stage.shop.commit(6))
    assert len(letters(desk)) == 18


def test_a_full_journal_blocks_before_anything_is_delivered(stage: Stage, sink: Make, journal: Open) -> None:
    refuse(stage.out, 2)
    desk = journal(max_entries=1, overflow="block")
    query = stage.start(sink(), letters=LetterKeeping(desk))
    stage.delivered(query, stage.shop.commit(3))
    end = stage.shop.commit(3)
    with pytest.raises(SinkError, match="max_entries") as caught:
        wait_until(lambda: False, query)
    assert caught.value.code == "dlq.full" and numbers(stage) == [1, 3]
    desk.close(LetterFilter(), "acknowledged")
    again = stage.start(sink(), letters=LetterKeeping(desk))
    stage.delivered(again, end)
    assert numbers(stage) == [1, 3, 4, 5, 6]


def test_later_changes_of_a_key_are_held_behind_its_letter(stage: Stage, sink: Make, journal: Open) -> None:
    """Those of later batches are not delivered; one in the same batch is a letter too, for a replay to bring it in
    order."""
    refuse(stage.out, 2)
    desk = journal(overflow="block")
    query = stage.start(sink(), letters=LetterKeeping(desk, hold_key=True))
    stage.delivered(query, stage.shop.append([[("u", 7, 1), ("u", 7, 2), ("u", 8, 3), ("u", 7, 4)]]))
    stage.delivered(query, stage.shop.append([[("u", 7, 5), ("u", 8, 6)]]))
    assert numbers(stage) == [1, 3, 4, 6]
    assert [(letter.seq, letter.state) for letter in letters(desk)] == [(1, "waiting"), (3, "held"), (4, "held")]
    assert [image(letter)["n"] for letter in letters(desk)] == [2, 4, 5]
    desk.close(LetterFilter(), "acknowledged")
    stage.delivered(query, stage.shop.append([[("u", 7, 7)]]))
    assert numbers(stage) == [1, 3, 4, 6, 7]
