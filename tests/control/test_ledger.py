"""The snapshot ledger's promises, in each database that may hold it."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from tailrace.contracts import Admitted, ChunkId, Extent, Staged
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger, TableRequest, TableRun
from tailrace.errors import SourceError
from tailrace.schema import Column, TableSchema
from tailrace.testing.waiting import eventually

SCHEMA = TableSchema(1, "db", "public", "a", (Column("id", "bigint", False),), ("id",))
EXTENTS = [Extent(None, ("10",)), Extent(("10",), ("20",)), Extent(("20",), None)]


@pytest.fixture
def ledger(store: Store) -> SnapshotLedger:
    return SnapshotLedger(store)


def _request(ledger: SnapshotLedger, *tables: str, filter: str | None = None) -> str:
    wanted = [TableRequest("public", table, filter, 100) for table in tables]
    return ledger.request("shop", "asked", wanted, log_id="log", since=7)


def _planned(ledger: SnapshotLedger, extents: list[Extent] = EXTENTS) -> tuple[str, TableRun]:
    """A run of one table whose chunks are all planned."""
    run = _request(ledger, "a")
    [table] = ledger.tables(run)
    ledger.plan(table, extents, complete=True)
    return run, table


def _staged(run: str, number: int, rows: int = 10) -> Staged:
    chunk = ChunkId(run, "public", "a", number)
    return Staged(chunk, f"/staged/{number}", rows, rows * 8, "0/1", "0/10", "10:10:", SCHEMA, 5, False, ("k",))


def _admitted(run: str, number: int, owed: tuple[str, ...] = (), paid: tuple[str, ...] = ()) -> Admitted:
    return Admitted(ChunkId(run, "public", "a", number), 9, owed, paid)


def _numbers(ledger: SnapshotLedger, run: str, state: str) -> list[int]:
    return [chunk.number for chunk, _ in ledger.chunks(run, state)]


def _state(ledger: SnapshotLedger, run: str) -> tuple[str, list[str]]:
    return ledger.run(run).state, [table.state for table in ledger.tables(run)]


# -- runs ----------------------------------------------------------------------------------------------------


def test_a_run_is_as_requested(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "b", "a", filter="x > 1")
    found = ledger.run(run)
    assert (found.source, found.reason, found.state, found.log_id, found.since) == ("shop", "asked", "active", "log", 7)
    assert (found.finished_us, found.error) == (None, None)
    expected = [TableRun(run, "public", name, "x > 1", "planning", 100, 0, 0) for name in ("a", "b")]
    assert ledger.tables(run) == expected


def test_a_request_is_made_whole_or_not_at_all(ledger: SnapshotLedger) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        _request(ledger, "a", "a")
    assert ledger.runs("shop") == []


def test_runs_are_found_by_source_and_state_oldest_first(ledger: SnapshotLedger) -> None:
    first, second = _request(ledger, "a"), _request(ledger, "b")
    ledger.request("other", "asked", [TableRequest("public", "a")], log_id="log", since=0)
    ledger.cancel(first)
    assert {run.id for run in ledger.runs("shop")} == {first, second}
    assert [run.id for run in ledger.runs("shop")] == sorted([first, second])
    assert [run.id for run in ledger.runs("shop", "active")] == [second]
    assert [run.id for run in ledger.runs("shop", "cancelled")] == [first]


def test_a_run_may_begin_later_in_the_log(ledger: SnapshotLedger) -> None:
    run, other = _request(ledger, "a"), _request(ledger, "a")
    ledger.begin_at(run, 70)
    assert (ledger.run(run).since, ledger.run(other).since) == (70, 7)


def test_cancel_ends_an_active_run_once(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a")
    assert ledger.cancel(run)
    assert not ledger.cancel(run)
    assert not ledger.fail(run, SourceError("source.refused", "no"))
    found = ledger.run(run)
    assert (found.state, found.error) == ("cancelled", None)
    assert found.finished_us is not None


def test_a_failed_run_keeps_its_error(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a")
    error = SourceError("source.refused", "no", hint="ask again", where="public.a")
    assert ledger.fail(run, error)
    assert not ledger.cancel(run)
    assert (ledger.run(run).state, ledger.run(run).error) == ("failed", error.as_dict())


def test_a_run_without_tables_left_to_read_is_done(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a", "b")
    for table in ledger.tables(run):
        assert _state(ledger, run)[0] == "active"
        ledger.plan(table, [], complete=True)
    assert _state(ledger, run) == ("done", ["done", "done"])
    assert ledger.run(run).finished_us is not None


def test_a_table_that_is_gone_does_not_hold_the_run(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger, EXTENTS[:1])
    other = _request(ledger, "a")
    ledger.plan(ledger.tables(other)[0], EXTENTS[:1], complete=False)
    [table] = ledger.tables(run)
    ledger.drop_table(table)
    assert _state(ledger, run) == ("done", ["gone"])
    assert ledger.chunks(run, "planned") == []
    assert _numbers(ledger, other, "planned") == [0]


def test_covered_are_whole_tables_in_this_log_that_are_there_or_coming(ledger: SnapshotLedger) -> None:
    assert ledger.covered("shop", "log") == set()
    run, _ = _planned(ledger, EXTENTS[:1])
    assert ledger.covered("shop", "log") == {("public", "a")}
    assert ledger.covered("shop", "another log") == ledger.covered("other", "log") == set()
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    assert ledger.run(run).state == "done"
    assert ledger.covered("shop", "log") == {("public", "a")}


def test_a_part_or_a_run_that_ended_early_covers_nothing(ledger: SnapshotLedger) -> None:
    _request(ledger, "a", filter="id > 5")
    run = _request(ledger, "a", "b")
    ledger.plan(ledger.tables(run)[1], [], complete=True)
    ledger.cancel(run)
    assert ledger.covered("shop", "log") == {("public", "b")}


# -- chunks --------------------------------------------------------------------------------------------------


def test_planning_goes_on_where_it_stood(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a")
    [table] = ledger.tables(run)
    assert ledger.last_extent(table) is None
    ledger.plan(table, EXTENTS[:2], complete=False)
    assert ledger.last_extent(table) == EXTENTS[1]
    assert _state(ledger, run) == ("active", ["planning"])
    ledger.plan(table, EXTENTS[2:], complete=True)
    assert [extent for _, extent in ledger.chunks(run, "planned")] == EXTENTS
    assert _numbers(ledger, run, "planned") == [0, 1, 2]
    assert _state(ledger, run) == ("active", ["reading"])


def test_chunks_are_limited_where_that_is_asked(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    assert [len(ledger.chunks(run, "planned", limit)) for limit in (-1, 0, 2, 9)] == [3, 0, 2, 3]


def test_a_staged_chunk_waits_with_all_that_was_told_of_it(ledger: SnapshotLedger) -> None:
    run, table = _planned(ledger)
    ledger.stage([_staged(run, 1), _staged(run, 0)])
    assert ledger.staged("shop") == [_staged(run, 0), _staged(run, 1)]
    assert ledger.staged("other") == []
    assert (ledger.count(run, "planned"), ledger.count(run, "staged"), ledger.unfinished(table)) == (1, 2, 3)
    assert ledger.tables(run)[0].rows_read == 20


def test_staging_twice_counts_once(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    ledger.stage([_staged(run, 0), _staged(run, 0, rows=500)])
    assert ledger.staged("shop") == [_staged(run, 0)]
    assert ledger.tables(run)[0].rows_read == 10


def test_staging_what_is_in_the_log_changes_nothing(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    ledger.stage([_staged(run, 0)])
    assert ledger.staged("shop") == []
    assert (_numbers(ledger, run, "admitted"), ledger.tables(run)[0].rows_read) == ([0], 0)


def test_chunks_of_a_run_that_is_over_keep_their_state(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    ledger.stage([_staged(run, 0)])
    ledger.cancel(run)
    ledger.stage([_staged(run, 1)])
    assert ledger.staged("shop") == []
    assert _numbers(ledger, run, "staged") == [0]


def test_a_discarded_chunk_is_read_again(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    ledger.stage([_staged(run, 0), _staged(run, 1)])
    ledger.discard(_staged(run, 0))
    assert (_numbers(ledger, run, "planned"), _numbers(ledger, run, "staged")) == ([0, 2], [1])
    assert ledger.tables(run)[0].rows_read == 10
    ledger.stage([_staged(run, 0, rows=4)])
    assert ledger.staged("shop")[0].rows == 4
    assert ledger.tables(run)[0].rows_read == 14


def test_only_a_staged_chunk_can_be_discarded(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    ledger.stage([_staged(run, 0)])
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    ledger.discard(_staged(run, 0))
    ledger.discard(_staged(run, 1))
    assert (_numbers(ledger, run, "admitted"), _numbers(ledger, run, "planned")) == ([0], [1, 2])
    assert ledger.tables(run)[0].rows_read == 10


# -- what the log decided ------------------------------------------------------------------------------------


def test_how_far_a_log_is_entered_is_that_logs_own(ledger: SnapshotLedger) -> None:
    assert ledger.indexed("shop", "log") == 0
    ledger.enter("shop", "log", 10, None)
    ledger.enter("other", "log", 3, None)
    ledger.enter("shop", "log", 12, None)
    assert (ledger.indexed("shop", "log"), ledger.indexed("other", "log")) == (12, 3)
    ledger.enter("shop", "new log", 1, None)
    assert (ledger.indexed("shop", "log"), ledger.indexed("shop", "new log")) == (0, 1)


def test_entering_an_admission_twice_is_harmless(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    for _ in range(2):
        ledger.enter("shop", "log", 10, _admitted(run, 0, owed=("k1",)))
    assert _numbers(ledger, run, "admitted") == [0]
    assert ledger.tables(run)[0].rows_admitted == 9
    assert ledger.owed(run, "public", "a") == {"k1"}


def test_an_old_admission_does_not_bring_a_paid_debt_back(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    owing = _admitted(run, 0, owed=("k1",))
    ledger.enter("shop", "log", 10, owing)
    ledger.enter("shop", "log", 20, _admitted(run, 1, paid=("k1",)))
    ledger.enter("shop", "log", 10, owing)
    assert ledger.owed(run, "public", "a") == set()


def test_an_admission_of_a_run_the_store_does_not_know_is_passed_over(ledger: SnapshotLedger) -> None:
    ledger.enter("shop", "log", 10, _admitted("lost", 0, owed=("k1",)))
    assert ledger.owed("lost", "public", "a") == set()
    assert ledger.indexed("shop", "log") == 10


def test_a_chunk_that_was_never_staged_here_is_admitted_too(ledger: SnapshotLedger) -> None:
    """The log decides: the tap can die between its line and the store."""
    run, table = _planned(ledger)
    ledger.enter("shop", "log", 10, _admitted(run, 2))
    assert (_numbers(ledger, run, "admitted"), ledger.unfinished(table)) == ([2], 2)


def test_a_table_is_done_when_its_last_chunk_is_in_the_log(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger)
    for number in (2, 0):
        ledger.enter("shop", "log", 10 + number, _admitted(run, number))
        assert _state(ledger, run) == ("active", ["reading"])
    ledger.enter("shop", "log", 20, _admitted(run, 1))
    assert _state(ledger, run) == ("done", ["done"])
    assert ledger.tables(run)[0].rows_admitted == 27


def test_a_table_that_is_still_planned_is_not_done(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a")
    [table] = ledger.tables(run)
    ledger.plan(table, EXTENTS[:1], complete=False)
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    assert _state(ledger, run) == ("active", ["planning"])
    ledger.plan(table, [], complete=True)
    assert _state(ledger, run) == ("done", ["done"])


def test_a_table_is_not_done_while_it_owes(ledger: SnapshotLedger) -> None:
    run, table = _planned(ledger, EXTENTS[:1])
    ledger.enter("shop", "log", 10, _admitted(run, 0, owed=("k1", "k2")))
    assert ledger.owed(run, "public", "a") == {"k1", "k2"}
    ledger.plan(table, [Extent(keys=("k1", "k2"))], complete=False)
    ledger.enter("shop", "log", 20, _admitted(run, 1, paid=("k1",)))
    assert (_state(ledger, run), ledger.owed(run, "public", "a")) == (("active", ["reading"]), {"k2"})
    ledger.plan(table, [Extent(keys=("k2",))], complete=False)
    ledger.enter("shop", "log", 30, _admitted(run, 2, paid=("k2",)))
    assert _state(ledger, run) == ("done", ["done"])


def test_what_another_table_owes_or_lacks_holds_only_the_run(ledger: SnapshotLedger) -> None:
    run = _request(ledger, "a", "b")
    a, b = ledger.tables(run)
    ledger.plan(a, EXTENTS[:1], complete=True)
    ledger.plan(b, EXTENTS[:1], complete=True)
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    assert _state(ledger, run) == ("active", ["done", "reading"])
    ledger.enter("shop", "log", 20, Admitted(ChunkId(run, "public", "b", 0), 5, owed=("k1",)))
    assert _state(ledger, run) == ("active", ["done", "reading"])


def test_an_admission_does_not_wake_a_cancelled_run(ledger: SnapshotLedger) -> None:
    run, _ = _planned(ledger, EXTENTS[:1])
    ledger.cancel(run)
    ledger.enter("shop", "log", 10, _admitted(run, 0))
    assert ledger.run(run).state == "cancelled"
    assert _numbers(ledger, run, "admitted") == [0]


def test_what_was_read_since_is_known_by_table(ledger: SnapshotLedger) -> None:
    earlier, _ = _planned(ledger, EXTENTS[:1])
    ledger.enter("shop", "log", 10, _admitted(earlier, 0))
    since = ledger.run(earlier).created_us + 1
    assert ledger.read_since("shop", "log", since) == {}
    assert ledger.read_since("shop", "log", since - 1) == {"public.a": True}
    eventually(lambda: time.time() * 1e6 > since)
    run = _request(ledger, "a", "b")
    _request(ledger, "c", filter="x > 1")
    assert ledger.read_since("shop", "log", since) == {"public.a": False, "public.b": False}
    a, _ = ledger.tables(run)
    ledger.plan(a, EXTENTS[:1], complete=True)
    ledger.enter("shop", "log", 20, _admitted(run, 0))
    ledger.cancel(run)
    assert ledger.read_since("shop", "log", since) == {"public.a": True}
    assert ledger.read_since("shop", "another", since) == ledger.read_since("other", "log", since) == {}
