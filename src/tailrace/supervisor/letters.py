"""Dead letters, for people: look at them, close them, deliver them again. It works beside a running pipeline, and
without one."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tailrace.changelog import LogReader
from tailrace.contracts import OPEN, Delivery, RecordSink
from tailrace.contracts.letters import unpacked
from tailrace.control.journal import Journal, JournalTotals, KeptLetter, LetterFilter, LetterGroup
from tailrace.control.replays import ChosenLetter, Replay, Replays
from tailrace.errors import ConfigError, LogError
from tailrace.spark.checkpoint import Checkpoint
from tailrace.spark.letters import hold_log
from tailrace.spark.replay import Judgement, Redelivery, Rerunning
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout, is_running, run_lock

NO_SINK = "the pipeline has no such sink any more"
IMAGES = ("key", "before", "after")


@dataclass(frozen=True)
class ReplayProgress:
    """A replay and its letters. `working`: the pipeline's process carries it out."""

    replay: Replay
    letters: tuple[ChosenLetter, ...]
    working: bool

    @property
    def over(self) -> bool:
        return self.replay.state in {"done", "failed"}

    def counts(self) -> dict[str, int]:
        """How many letters have each outcome, or, without one, each verdict."""
        found: dict[str, int] = {}
        for each in self.letters:
            said = each.outcome or each.verdict
            found[said] = found.get(said, 0) + 1
        return found


class LetterService:
    """Of one pipeline."""

    def __init__(self, pipeline: Pipeline, platform: Platform) -> None:
        self._layout, self._pipeline, self._platform = Layout.of(platform), pipeline, platform
        store = self._layout.open_store()
        self._journal = Journal(store, pipeline.name, pipeline.spec.journal.bounds)
        self._replays = Replays(store, pipeline.name)
        self._sinks = {sink.id: sink for sink in pipeline.sinks if isinstance(sink, RecordSink)}
        self._log_path = self._layout.log(pipeline.source_id)

    # -- look ------------------------------------------------------------------------------------------------

    def groups(self, wanted: LetterFilter) -> list[LetterGroup]:
        return self._journal.groups(wanted)

    def find(self, wanted: LetterFilter, limit: int) -> list[KeptLetter]:
        return self._journal.find(wanted, limit)

    def each(self, wanted: LetterFilter) -> Iterator[KeptLetter]:
        return self._journal.each(wanted)

    def totals(self) -> JournalTotals:
        return self._journal.totals()

    def get(self, number: int) -> KeptLetter:
        """Raises `dlq.no_letter`."""
        found = self._journal.find(LetterFilter(numbers=(number,)))
        if not found:
            hint = "tailrace dlq list PIPELINE.yaml --letters shows which there are"
            raise ConfigError("dlq.no_letter", f"there is no dead letter {number}", hint=hint)
        return found[0]

    # -- close -----------------------------------------------------------------------------------------------

    def acknowledge(self, wanted: LetterFilter) -> int:
        """Nothing is to be done about these open letters; returns how many there were."""
        count = self._journal.close(wanted, "acknowledged")
        self._let_go()
        return count

    def purge(self, wanted: LetterFilter) -> int:
        """Remove these, whatever their state; returns how many there were."""
        count = self._journal.purge(wanted)
        self._let_go()
        return count

    def _let_go(self) -> None:
        """The log need not keep what nobody waits for any more."""
        with contextlib.suppress(LogError):
            log_id = LogReader(self._log_path).log_id
            for sink in self._sinks.values():
                hold_log(self._journal, sink.id, log_id, self._log_path, required=sink.required)

    # -- replay ----------------------------------------------------------------------------------------------

    def dry_run(self, wanted: LetterFilter) -> ReplayProgress:
        """Choose open letters, and say what would happen to each. Nothing else happens."""
        wanted = replace(wanted, states=OPEN)
        replay = self._replays.freeze(list(self._judged(wanted)))
        return self.progress(replay.id)

    def _judged(self, wanted: LetterFilter) -> Iterator[ChosenLetter]:
        places = self._journal.places(wanted)
        for name in sorted({place.sink for place in places}):
            mine = [place for place in places if place.sink == name]
            sink = self._sinks.get(name)
            if sink is None:
                yield from (ChosenLetter(place.number, name, "refuse", NO_SINK) for place in mine)
                continue
            numbers = frozenset(place.number for place in mine)
            judgement = Judgement(self._journal, sink, self._log_path, numbers, [place.seq for place in mine])
            judgement.look(self._offset(sink))
            for kept in self._journal.each(replace(wanted, sink=name)):
                yield ChosenLetter(kept.number, name, *judgement.of(kept.letter))

    def progress(self, replay: str) -> ReplayProgress:
        working = is_running(self._layout, self._pipeline.name)
        return ReplayProgress(self._replays.get(replay), tuple(self._replays.letters(replay)), working)

    def carry_out(self, replay: str, *, forced: bool, rate: int | None) -> ReplayProgress:
        """Ask the pipeline's process for it, or, where there is none, do it here. Raises `sink.unavailable` and the
        like where the rest waits for another time."""
        self._replays.get(replay)
        found = self._replays.request(replay, forced=forced, rate=rate)
        self._refuse_unknown_sinks(found)
        if found.state == "requested" and not is_running(self._layout, self._pipeline.name):
            with run_lock(self._layout, self._pipeline.name):
                self._carry_out_here(found)
        return self.progress(replay)

    def _refuse_unknown_sinks(self, replay: Replay) -> None:
        """Letters of sinks that the pipeline no longer has are nobody's to deliver."""
        left = [each for each in self._replays.letters(replay.id) if each.sink not in self._sinks]
        self._replays.note(replay.id, [(each.number, "refused", NO_SINK) for each in left])
        self._replays.settle(replay.id)

    def _carry_out_here(self, replay: Replay) -> None:
        for name in sorted({each.sink for each in self._replays.letters(replay.id) if each.outcome is None}):
            sink = self._sinks[name]
            sink.prepare(self._delivery())
            with self._rerunning(sink) as rerun:
                offset = self._offset(sink)
                redelivery = Redelivery(
                    self._journal,
                    self._replays,
                    sink,
                    self._delivery(),
                    self._log_path,
                    partial(_nobody_else, offset),
                    rerun,
                )
                redelivery.carry_out(replay, _wait)

    @contextlib.contextmanager
    def _rerunning(self, sink: RecordSink) -> Iterator[Rerunning | None]:
        """A Spark for the chain, where a letter needs it."""
        if self._journal.needed_from(sink.id, LogReader(self._log_path).log_id) is None:
            yield None
            return
        from tailrace.spark.letters import LetterKeeping
        from tailrace.spark.libraries import open_for
        from tailrace.spark.rerun import open_rerun

        spark = open_for([sink], self._platform.spark, self._layout.spark_log, {})
        try:
            carrier = open_rerun(
                spark,
                self._log_path,
                sink,
                self._delivery(),
                provenance=self._pipeline.provenance,
                state_dir=self._layout.sink(self._pipeline.name, sink.id),
                processors=self._pipeline.chain(sink),
                letters=LetterKeeping(self._journal),
            )
            yield carrier.rows_of
        finally:
            spark.stop()

    def _delivery(self) -> Delivery:
        return Delivery(self._pipeline.name, self._pipeline.metadata.tenant, self._pipeline.source_id)

    def _offset(self, sink: RecordSink) -> int:
        """Below it the sink has everything, as far as its checkpoint tells, or else its mark."""
        state = self._layout.sink(self._pipeline.name, sink.id)
        newest = Checkpoint(state / "checkpoint").newest()
        if newest is not None:
            return newest.offset
        return sink.mark(self._delivery(), LogReader(self._log_path).log_id)


@contextlib.contextmanager
def _nobody_else(offset: int) -> Iterator[int]:
    """The turn of a sink that no process runs."""
    yield offset


def told(kept: KeptLetter) -> dict[str, Any]:
    """A letter as JSON has it, without what is in its row."""
    letter = kept.letter
    fields = {name: value for name, value in letter.as_dict().items() if name not in {"row", "schema", "table"}}
    times = {"attempts": kept.attempts, "first_us": kept.first_us, "last_us": kept.last_us}
    return {"number": kept.number, **fields, "table": letter.table_name, "key": _image(letter.key), **times}


def told_whole(kept: KeptLetter) -> dict[str, Any]:
    """The same with all that the letter keeps of the change: `change`, by its columns, and the `record`."""
    if not kept.letter.row:
        return {**told(kept), "change": None, "record": None}
    row = {name: _plain(name, value) for name, value in unpacked(kept.letter.row).to_pylist()[0].items()}
    return {**told(kept), "change": {name: row[name] for name in row if name != "value"}, "record": row.get("value")}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if name == "headers" and isinstance(value, list):
        return dict(cast(list[tuple[str, str]], value))
    return _image(value) if name in IMAGES else value


def _image(text: str | None) -> Mapping[str, Any] | str | None:
    try:
        found: Mapping[str, Any] | None = None if text is None else json.loads(text)
        return found
    except ValueError:
        return text


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False
