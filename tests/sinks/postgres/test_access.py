"""Who gets in, and how: TLS, passwords, and what a doctor says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.contracts import Subject
from tailrace.errors import Action, ConfigError, SinkError, decide
from tailrace.sinks.postgres import PostgresEvents
from tailrace.testing.suites.sinks import DELIVERY, LOG, deliver, versions
from tests.capture.postgres.authority import Authority, TlsServer
from tests.capture.running import Database

NOBODY = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    with TlsServer() as running:
        running.insist()
        yield running


@pytest.fixture
def options(server: TlsServer) -> Iterator[dict[str, Any]]:
    with Database(server) as db:
        yield {**server.options(db.name), "mode": "events", "id": "copy", "table_name": "events"}


def test_events_arrive_over_tls(options: dict[str, Any]) -> None:
    sink = PostgresEvents.model_validate(options)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=2))
    assert sink.mark(DELIVERY, LOG) == 4


def test_who_is_not_let_in_stops(options: dict[str, Any], tmp_path: Path) -> None:
    wrong = {
        "certificate verify failed": {"tls": options["tls"] | {"root_cert": Authority(tmp_path, "stranger").root}},
        "certificate": {"tls": {"mode": "require"}},
        "password authentication failed": {"password": "wrong"},
        "does not exist": {"dsn": options["dsn"] + "_else"},
    }
    for told, change in wrong.items():
        with pytest.raises(SinkError, match=told) as failure:
            PostgresEvents.model_validate(options | change).prepare(DELIVERY)
        assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
        assert failure.value.hint
        assert "wrong" not in str(failure.value)


def test_a_connection_string_that_is_none(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as failure:
        PostgresEvents.model_validate(options | {"dsn": "postgresql://u:hunter2@h/x?nonsense=1"}).prepare(DELIVERY)
    assert failure.value.code == "sink.bad_dsn" and "hunter2" not in str(failure.value)


def test_a_doctor_looks_and_makes_nothing(options: dict[str, Any], server: TlsServer) -> None:
    def states(**change: Any) -> list[tuple[str, str]]:
        sink = PostgresEvents.model_validate(options | change)
        return [(each.name, each.state) for each in sink.check(Subject("copy"), DELIVERY)]

    assert states() == [("database", "ok"), ("marks", "ok")]
    assert states(password="wrong") == [("database", "fail"), ("marks", "skipped")]
    assert states(dsn=NOBODY + "?nonsense=1") == [("database", "fail"), ("marks", "skipped")]
    assert states(dsn=NOBODY, tls=None) == [("database", "fail"), ("marks", "skipped")]
    sink = PostgresEvents.model_validate(options)
    session = sink.address().connect()
    assert not sink.ledger(DELIVERY).exists(session, "marks")
    session.close()
