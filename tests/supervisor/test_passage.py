"""Waiting for the log: as long as it takes while a tap runs, and not at all where it has everything already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.changelog import head
from tailrace.errors import SetupError
from tailrace.supervisor.verify.passage import Passage
from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Database


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    with Database(postgres) as made:
        made.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA other", "CREATE TABLE other.t (id int)")
        yield made


def passage(run: Capturing, patience_s: float) -> Passage:
    folder = run.path.parent
    return Passage(run.source, run.path, folder / "tap.json", patience_s, lambda _: None)


def test_a_stopped_pipeline_that_has_everything_is_not_waited_for(db: Database, tmp_path: Path) -> None:
    with Capturing(db, tmp_path / "log") as run:
        db.run("INSERT INTO t VALUES (1)")
        run.changes()
    early = run.source.current_position()
    db.run("INSERT INTO other.t VALUES (1)")
    assert passage(run, 0.0).log_past([run.source.current_position(), early]) == head(run.path)


def test_a_stopped_pipeline_that_lacks_a_change_is_waited_for(db: Database, tmp_path: Path) -> None:
    with Capturing(db, tmp_path / "log") as run:
        run.changes()
    db.run("INSERT INTO t VALUES (1)")
    position = run.source.current_position()
    with pytest.raises(SetupError, match=f"waited 0.3 s for the log to pass {position}") as ended:
        passage(run, 0.3).log_past([position])
    assert "start the pipeline" in ended.value.hint
    with Capturing(db, tmp_path / "log") as again:
        again.changes()
        assert passage(again, 30.0).log_past([position]) == head(run.path)
