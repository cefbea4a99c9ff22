"""A sink that came to a log whose beginning is gone: it says from where it delivers, and what brings the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.changelog import Trimmed
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import TailraceError
from tailrace.spark.query import Began
from tailrace.spec import Pipeline, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.missed import LOOK_S, Missed, look_back
from tailrace.testing.servers import PostgresServer
from tests.capture.running import Database


class Snapshots:
    """What the ledger says, and when it is asked."""

    def __init__(self) -> None:
        self.read: dict[str, bool] = {}
        self.error: TailraceError | None = None
        self.now = 0.0

    def __call__(self) -> dict[str, bool]:
        if self.error is not None:
            raise self.error
        return self.read

    def clock(self) -> float:
        self.now += LOOK_S
        return self.now


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots()


@pytest.fixture
def missed(snapshots: Snapshots) -> Missed:
    return Missed(4711, 12_345, ("public.a", "public.b"), snapshots, snapshots.clock)


def test_it_says_from_where_and_offers_the_snapshot(missed: Missed) -> None:
    [told] = missed.warnings()
    assert "delivers from offset 4711 on" in told and "12,345 changes before that" in told
    assert "public.a, public.b" in told and told.endswith("tailrace snapshot PIPELINE.yaml")


def test_the_warning_follows_the_snapshot_and_ends_with_it(missed: Missed, snapshots: Snapshots) -> None:
    snapshots.read = {"public.a": False, "public.b": False}
    [told] = missed.warnings()
    assert told.endswith("the snapshot under way brings them")
    snapshots.read = {"public.a": True}
    [told] = missed.warnings()
    assert "rows of public.b that" in told and told.endswith("tailrace snapshot PIPELINE.yaml --table public.b")
    snapshots.read = {"public.a": True, "public.b": True}
    assert missed.warnings() == ()


def test_many_tables_are_named_in_part_and_offered_in_full(snapshots: Snapshots) -> None:
    names = [f"public.{name}" for name in ("a b", *"cdefgh")]
    snapshots.read = {"public.c": True}
    [told] = Missed(1, 1, names, snapshots, snapshots.clock).warnings()
    assert "public.g and 1 more that" in told
    command = shlex.split(told.partition("PIPELINE.yaml ")[2])
    assert command[1::2] == [name for name in names if name != "public.c"]


def test_a_ledger_that_cannot_be_asked_changes_nothing(missed: Missed, snapshots: Snapshots) -> None:
    told = missed.warnings()
    snapshots.error = TailraceError("store.busy", "busy")
    assert missed.warnings() == told


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    with Database(postgres) as made:
        made.run("CREATE TABLE a (id int PRIMARY KEY)")
        yield made


def shop(folder: Path, dsn: str) -> Pipeline:
    file = folder / "pipeline.yaml"
    file.write_text(
        f"metadata: {{name: shop}}\nspec:\n  source: {{type: postgres, config: {{id: db, dsn: '{dsn}', "
        "tables: [public.*]}}\n  sinks: [{type: console, config: {id: out}}]\n"
    )
    return load_pipelines([file])[0]


def test_only_tables_that_are_still_captured_are_missed(db: Database, tmp_path: Path) -> None:
    began = Began(7, Trimmed(7, ("public.a", "public.dropped"), since_us=1))
    layout = Layout(tmp_path / "data")
    found = look_back(shop(tmp_path, db.dsn), layout, "log", began)
    assert found is not None
    [told] = found.warnings()
    assert "rows of public.a that" in told
    run = SnapshotLedger(Store(layout.store)).request(
        "db", "asked", [TableRequest("public", "a")], log_id="log", since=0
    )
    assert run
    again = look_back(shop(tmp_path, db.dsn), layout, "log", began)
    assert again is not None and "under way" in again.warnings()[0]


def test_a_database_that_is_away_does_not_silence_it(tmp_path: Path) -> None:
    began = Began(7, Trimmed(7, ("public.a",), since_us=1))
    found = look_back(shop(tmp_path, "postgresql://localhost:1/db"), Layout(tmp_path / "data"), "log", began)
    assert found is not None and "rows of public.a that" in found.warnings()[0]


def test_a_store_that_cannot_be_opened_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    began = Began(7, Trimmed(7, ("public.a",), since_us=1))
    assert look_back(shop(tmp_path, "postgresql://localhost:1/db"), Layout(tmp_path / "data"), "log", began) is not None


def test_a_sink_that_had_the_whole_log_missed_nothing(tmp_path: Path) -> None:
    assert look_back(shop(tmp_path, "postgresql://localhost:1/db"), Layout(tmp_path), "log", Began(0)) is None


def test_it_is_remembered_where_a_sink_began(tmp_path: Path) -> None:
    for began in (Began(3), Began(7, Trimmed(7, ("public.a", "public.b"), since_us=1))):
        began.save(tmp_path / "initial.json")
        assert Began.load(tmp_path / "initial.json") == began
    (tmp_path / "initial.json").write_text('{"offset": 5}')  # of an earlier version
    assert Began.load(tmp_path / "initial.json") == Began(5)
