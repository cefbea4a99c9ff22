"""Delivering dead letters again: in order, nothing that a newer change has overtaken, and an outcome for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.change import event_id
from tailrace.changelog import LogReader, Subscribers, read_slice
from tailrace.contracts import OPEN, Delivery, Letter
from tailrace.contracts.letters import packed
from tailrace.control import Store
from tailrace.control.journal import Journal, JournalBounds, LetterFilter
from tailrace.control.replays import ChosenLetter, Replay, Replays
from tailrace.errors import ConfigError, SinkError
from tailrace.spark.letters import HOLD, hold_log
from tailrace.spark.replay import Judgement, Redelivery
from tailrace.testing.failpoints import dies_at
from tests.spark.logs import Shop
from tests.spark.sinks import RefusingSink, RefusingState, read_commits, read_lines, refuse

DELIVERY = Delivery("shop-feed", "acme", "shop")


@dataclass
class Desk:
    """A log, a journal, and a sink that has everything up to the log's end."""

    shop: Shop
    journal: Journal
    replays: Replays
    out: Path
    pauses: list[float] = field(default_factory=list)

    def sink(self, kind: type[RefusingSink] = RefusingSink, **settings: Any) -> RefusingSink:
        made = kind(id="lines", directory=str(self.out), **settings)
        made.prepare(DELIVERY)
        return made

    def keep(self, *seqs: int, **said: Any) -> None:
        """Letters of the changes at these offsets."""
        self.journal.put([replace(self._letter(seq), **said) for seq in seqs])

    def _letter(self, seq: int) -> Letter:
        reader = LogReader(self.shop.path)
        [piece] = reader.slices(seq, seq + 1, 1)
        [row] = read_slice(piece)
        found = row.to_pylist()[0]
        event = event_id(found["source"], found["position"], found["tx_ordinal"])
        row = row.append_column("event_id", pa.array([event])).append_column("value", pa.array([found["after"]]))
        names = ("source", "seq", "op", "schema", "table", "key", "schema_id", "position", "ts_us")
        return Letter(
            sink="lines",
            processor="",
            log_id=reader.log_id,
            part="",
            event_id=event,
            code="sink.rejected",
            message="no",
            row=packed(row),
            **{name: found[name] for name in names},
        )

    @property
    def end(self) -> int:
        return LogReader(self.shop.path).end

    def turn(self) -> AbstractContextManager[int]:
        return nullcontext(self.end)

    def freeze(self, sink: RefusingSink, *numbers: int, **wanted: Any) -> Replay:
        """What a dry run chooses: these letters, or all that are open."""
        chosen = self.journal.find(LetterFilter(numbers=numbers or None, states=OPEN, **wanted))
        seqs = [kept.letter.seq for kept in chosen]
        judgement = Judgement(self.journal, sink, self.shop.path, frozenset(kept.number for kept in chosen), seqs)
        judgement.look(self.end)
        verdicts = [ChosenLetter(kept.number, "lines", *judgement.of(kept.letter)) for kept in chosen]
        return self.replays.freeze(verdicts)

    def carry_out(self, sink: RefusingSink, replay: Replay, *, forced: bool = False, rate: int | None = None) -> Replay:
        asked = self.replays.request(replay.id, forced=forced, rate=rate)
        Redelivery(self.journal, self.replays, sink, DELIVERY, self.shop.path, self.turn).carry_out(asked, self._pause)
        return self.replays.get(replay.id)

    def _pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return False

    def verdicts(self, replay: Replay) -> list[str]:
        return [each.verdict for each in self.replays.letters(replay.id)]

    def outcomes(self, replay: Replay) -> list[str | None]:
        return [each.outcome for each in self.replays.letters(replay.id)]

    def delivered(self) -> list[int]:
        return [line["n"] for line in read_lines(self.out)]

    def states(self) -> dict[int, str]:
        return {kept.letter.seq: kept.letter.state for kept in self.journal.find()}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with closing(Store(tmp_path / "control.db")) as store:
        journal = Journal(store, "shop-feed", JournalBounds(overflow="block"))
        yield Desk(Shop(tmp_path / "log"), journal, Replays(store, "shop-feed"), tmp_path / "out")


def test_letters_that_nothing_overtook_are_delivered_in_order(desk: Desk) -> None:
    desk.shop.append([[("u", n, n) for n in range(10)]])
    desk.keep(7)
    desk.keep(2, 4)
    sink = desk.sink(marks=True)
    replay = desk.freeze(sink)
    assert desk.verdicts(replay) == ["deliver"] * 3 and desk.delivered() == []
    assert desk.carry_out(sink, replay).state == "done"
    assert desk.delivered() == [2, 4, 7]
    assert desk.states() == {7: "replayed", 2: "replayed", 4: "replayed"}
    assert desk.outcomes(replay) == ["replayed"] * 3
    assert sink.mark(DELIVERY, "any") == 0  # a mark is not theirs to move


def test_a_replay_takes_what_it_chose_and_nothing_else(desk: Desk) -> None:
    desk.shop.append([[("u", n, n) for n in range(4)]])
    desk.keep(0, 1)
    sink = desk.sink()
    replay = desk.freeze(sink)
    desk.keep(2)
    desk.journal.close(LetterFilter(numbers=(1,)), "acknowledged")
    desk.carry_out(sink, replay)
    assert desk.delivered() == [1]
    assert desk.outcomes(replay) == ["gone", "replayed"]
    assert desk.states() == {0: "acknowledged", 1: "replayed", 2: "waiting"}
    assert desk.carry_out(sink, replay).state == "done" and desk.delivered() == [1]  # once


def test_an_overtaken_letter_is_refused_where_events_are_kept_unless_forced(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 2, 1), ("u", 1, 2)]])
    desk.keep(0)
    sink = desk.sink()
    replay = desk.freeze(sink)
    assert desk.verdicts(replay) == ["refuse"]
    desk.carry_out(sink, replay)
    [told] = desk.replays.letters(replay.id)
    assert (told.outcome, told.reason) == (
        "refused",
        "the newer change at offset 2 was delivered: deliver it with --force",
    )
    assert desk.delivered() == [] and desk.states() == {0: "waiting"}
    again = desk.freeze(sink)
    desk.carry_out(sink, again, forced=True)
    assert desk.delivered() == [0] and desk.outcomes(again) == ["replayed"]


def test_an_overtaken_letter_is_superseded_where_only_the_last_state_is_kept(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 2, 1), ("u", 1, 2)]])
    desk.keep(0, 1)
    sink = desk.sink(RefusingState)
    replay = desk.freeze(sink)
    assert desk.verdicts(replay) == ["supersede", "deliver"]
    desk.carry_out(sink, replay, forced=True)
    assert desk.delivered() == [1] and desk.states() == {0: "superseded", 1: "replayed"}


def test_a_truncate_overtakes_the_letters_of_its_table_and_never_comes_late_itself(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0)], [("t", 9, 1)], [("u", 2, 2)]])
    desk.keep(0, 1, 2)
    desk.journal.close(LetterFilter(numbers=(2,)), "acknowledged")
    sink = desk.sink(RefusingState)
    assert desk.verdicts(desk.freeze(sink)) == ["supersede", "deliver"]
    desk.keep(1, event_id="another")
    assert desk.verdicts(desk.freeze(sink, 4)) == ["supersede"]


def test_newer_changes_that_are_letters_themselves_overtake_nothing(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 1, 1), ("u", 1, 2)]])
    desk.keep(0, 1, 2)
    sink = desk.sink()
    desk.carry_out(sink, desk.freeze(sink))
    assert desk.delivered() == [0, 1, 2]


def test_what_was_overtaken_between_dry_run_and_replay_is_seen(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0)]])
    desk.keep(0)
    sink = desk.sink()
    replay = desk.freeze(sink)
    desk.shop.append([[("u", 1, 1)]])
    desk.carry_out(sink, replay)
    assert desk.verdicts(replay) == ["deliver"] and desk.outcomes(replay) == ["refused"]


def test_another_log_knows_nothing_of_a_letter(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 2, 1)]])
    desk.keep(0, log_id="an earlier one")
    desk.keep(1, log_id="an earlier one", row="")
    replay = desk.freeze(desk.sink())
    reasons = [each.reason for each in desk.replays.letters(replay.id)]
    assert desk.verdicts(replay) == ["refuse", "refuse"]
    assert "can no longer tell" in reasons[0] and "no longer has it" in reasons[1]


def test_held_letters_follow_the_one_that_holds_them_in_order(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 2, 1), ("u", 1, 2), ("u", 1, 3)]])
    desk.keep(0)
    desk.keep(2, 3, state="held")
    sink = desk.sink()
    assert desk.verdicts(desk.freeze(sink, 2, 3)) == ["refuse", "refuse"]
    refuse(desk.out, 0)
    failed = desk.freeze(sink)
    assert desk.verdicts(failed) == ["deliver"] * 3
    desk.carry_out(sink, failed)
    assert desk.outcomes(failed) == ["rejected", "refused", "refused"] and desk.delivered() == []
    refuse(desk.out)
    desk.carry_out(sink, desk.freeze(sink))
    assert desk.delivered() == [0, 2, 3]


def test_what_is_refused_again_stays_and_is_counted(desk: Desk) -> None:
    desk.shop.append([[("u", n, n) for n in range(3)]])
    desk.keep(0, 1)
    refuse(desk.out, 1)
    sink = desk.sink(marks=True)
    replay = desk.freeze(sink)
    desk.carry_out(sink, replay)
    assert desk.delivered() == [0] and desk.outcomes(replay) == ["replayed", "rejected"]
    [_, kept] = desk.journal.find()
    assert (kept.letter.state, kept.attempts, kept.letter.message) == ("waiting", 2, "1 is not wanted (lines)")


def test_a_target_that_still_refuses_nearly_all_ends_the_replay(desk: Desk) -> None:
    desk.shop.append([[("u", n, n) for n in range(150)]])
    desk.keep(*range(150))
    refuse(desk.out, *range(150))
    sink = desk.sink()
    replay = desk.freeze(sink)
    ended = desk.carry_out(sink, replay)
    assert ended.state == "failed" and "0 is not wanted" in (ended.error or "")
    assert desk.replays.counts(replay.id) == {"rejected": 100, "untried": 50}
    assert set(desk.states().values()) == {"waiting"}


def test_a_rate_bounds_pieces_and_waits_between_them(desk: Desk) -> None:
    desk.shop.append([[("u", n, n) for n in range(5)]])
    desk.keep(*range(5))
    sink = desk.sink()
    desk.carry_out(sink, desk.freeze(sink), rate=2)
    assert desk.delivered() == [0, 1, 2, 3, 4] and desk.pauses == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(("marks", "times"), [(True, 1), (False, 2)])
def test_what_dies_between_delivery_and_outcome_is_finished(desk: Desk, *, marks: bool, times: int) -> None:
    """A sink with commits of its own knows what it had; another gets it again, under the same event id."""
    desk.shop.append([[("u", 1, 0)]])
    desk.keep(0)
    sink = desk.sink(marks=marks)
    replay = desk.freeze(sink)
    with dies_at("dlq.replay.delivered"):
        desk.carry_out(sink, replay)
    assert desk.states() == {0: "waiting"} and desk.outcomes(replay) == [None]
    assert desk.carry_out(sink, replay).state == "done"
    assert desk.delivered() == [0] * times and desk.states() == {0: "replayed"}
    assert len(read_commits(desk.out)) == times


def test_an_outage_leaves_the_rest_for_later(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0)]])
    desk.keep(0)
    sink = desk.sink()
    replay = desk.freeze(sink)
    (desk.out / "refuse").touch()
    with pytest.raises(SinkError):
        desk.carry_out(sink, replay)
    assert [each.id for each in desk.replays.requested()] == [replay.id]
    (desk.out / "refuse").unlink()
    assert desk.carry_out(sink, replay).state == "done" and desk.delivered() == [0]


def test_the_log_is_held_as_long_as_a_letter_needs_it(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0), ("u", 2, 1), ("u", 1, 2)]])
    desk.keep(0, row="", processor="picky")
    log_id = LogReader(desk.shop.path).log_id
    hold_log(desk.journal, "lines", log_id, desk.shop.path, required=True)
    assert [each.name for each in Subscribers(desk.shop.path).all()] == [f"shop-feed/lines/{HOLD}"]
    sink = desk.sink(RefusingState)
    desk.carry_out(sink, desk.freeze(sink))
    assert desk.states() == {0: "superseded"} and Subscribers(desk.shop.path).all() == []


def test_a_replay_that_nobody_made_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError) as caught:
        desk.replays.request("12345678", forced=False, rate=None)
    assert caught.value.code == "dlq.no_replay"


def test_a_letter_that_lacks_what_the_sink_wants_now_stays(desk: Desk) -> None:
    desk.shop.append([[("u", 1, 0)]])
    desk.keep(0)
    [kept] = desk.journal.find()
    desk.journal.purge(LetterFilter())
    bare = pa.RecordBatch.from_pydict({"seq": [0], "event_id": [kept.letter.event_id]})
    desk.journal.put([replace(kept.letter, row=packed(bare))])
    [told] = desk.replays.letters(desk.freeze(desk.sink()).id)
    assert told.verdict == "refuse" and "key, op, after, tx_id, value" in told.reason
