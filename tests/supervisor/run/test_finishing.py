"""`--until-caught-up`: what it waits for, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import LogWriter
from tailrace.errors import SetupError, SourceError
from tailrace.spec import Platform, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run import Supervisor
from tailrace.testing.servers import PostgresServer

DOCUMENT = """
metadata: {{name: {id}}}
spec:
  source: {{type: postgres, config: {{id: {id}, dsn: "{dsn}", tables: [public.t]}}}}
  sinks: [{{type: console, config: {{id: console}}}}]
"""
FAR = "FFFFFFF/0"
"""A position that no server of the tests reaches."""


class Runner:
    """A sink that has delivered whatever it is told to."""

    failure = None
    delivered = -1

    def __init__(self, source_id: str) -> None:
        self.source_id = source_id

    def until(self, target: int) -> None:
        self.delivered = target

    def offset(self) -> int:
        return self.delivered


def supervised(folder: Path, **dsns: str) -> Any:
    """A supervisor of pipelines whose taps say that they run and have everything; nothing of it is started."""
    documents = []
    for name, dsn in dsns.items():
        (folder / f"{name}.yaml").write_text(DOCUMENT.format(id=name, dsn=dsn))
        documents.append(folder / f"{name}.yaml")
        LogWriter(Layout(folder).log(name), name).close()
        status = Layout(folder).tap_status(name)
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text(json.dumps({"state": "running", "settled": FAR}))
    supervisor: Any = Supervisor(load_pipelines(documents), Platform(data_dir=folder))
    supervisor._runners = [Runner(name) for name in dsns]
    return supervisor


def test_an_outage_while_the_position_is_fixed_is_waited_for(tmp_path: Path) -> None:
    with PostgresServer(18) as server:
        supervisor = supervised(tmp_path, shop=server.dsn())
        server.stop()
        assert not supervisor._is_finished()
        server.start()
        assert supervisor._is_finished()
        assert supervisor._runners[0].delivered == 0, "the end of a log without changes"


def test_a_database_that_refuses_is_not_waited_for(tmp_path: Path, postgres: PostgresServer) -> None:
    supervisor = supervised(tmp_path, shop=postgres.dsn("nowhere"))
    with pytest.raises(SetupError, match="nowhere"):
        supervisor._is_finished()


def test_a_source_that_stopped_for_good_does_not_hold_the_others(tmp_path: Path, postgres: PostgresServer) -> None:
    supervisor = supervised(tmp_path, shop=postgres.dsn(), other=postgres.dsn())
    Layout(tmp_path).tap_status("other").unlink()
    assert not supervisor._is_finished()
    supervisor._taps["other"].failure = SourceError("source.position_lost", "gone")
    assert supervisor._is_finished()
