"""Errors carry their code across processes, and one function decides what follows."""

from __future__ import annotations

import pickle

import pytest

from tailrace.config.problems import DocumentError, Problem
from tailrace.errors import (
    OF_A_RECORD,
    RETRYABLE,
    Action,
    ConfigError,
    LogError,
    SetupError,
    SinkError,
    SourceError,
    SparkError,
    TailraceError,
    decide,
    located,
)
from tailrace.passage import pack, unpack

KINDS: list[tuple[type[TailraceError], int]] = [
    (ConfigError, 2),
    (SetupError, 3),
    (SourceError, 1),
    (LogError, 1),
    (SparkError, 1),
    (SinkError, 1),
]


@pytest.mark.parametrize(("kind", "exit_code"), KINDS)
def test_an_error_survives_pickling_whole(kind: type[TailraceError], exit_code: int) -> None:
    error = kind("some.code", "what happened", hint="the way out", where="here")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.as_dict() == {
        "code": "some.code",
        "message": "what happened",
        "hint": "the way out",
        "where": "here",
    }
    assert again.exit_code == exit_code


def test_what_a_server_asked_for_crosses_processes() -> None:
    error = SinkError("sink.unavailable", "busy", hint="wait", where="here", retry_after=2.5)
    for again in (pickle.loads(pickle.dumps(error)), unpack(pack(error)), located(error, "there")):
        assert (type(again), again.as_dict()) == (SinkError, error.as_dict())
        assert again.retry_after == 2.5
    assert located(SinkError("sink.unavailable", "busy", retry_after=2.5), "there").retry_after == 2.5
    assert "retry_after" not in SinkError("sink.unavailable", "busy").as_dict()


def test_the_text_names_the_place_once() -> None:
    assert str(LogError("a.b", "broken", where="there")) == "broken (there)"
    assert str(LogError("a.b", "broken")) == "broken"


@pytest.mark.parametrize("code", sorted(RETRYABLE))
def test_what_time_can_heal_is_retried(code: str) -> None:
    assert decide(SourceError(code, "")) is Action.RETRY


@pytest.mark.parametrize("code", sorted(OF_A_RECORD))
def test_what_is_wrong_with_one_record_may_be_set_aside(code: str) -> None:
    assert decide(SinkError(code, "")) is Action.SET_ASIDE


@pytest.mark.parametrize(
    "error",
    [
        SourceError("source.position_lost", ""),
        SetupError("source.wal_level", ""),
        LogError("log.corrupt", ""),
        LogError("log.locked", ""),
        ValueError("a defect"),
        KeyboardInterrupt(),
    ],
)
def test_everything_else_stops(error: BaseException) -> None:
    assert decide(error) is Action.STOP


def test_any_error_can_be_told_its_place() -> None:
    several = DocumentError([Problem("config.unknown_key", "no", path=path) for path in ("a", "b")])
    found = located(several, "shop.yaml")
    assert isinstance(found, DocumentError)
    assert (found.where, len(found.problems), several.where) == ("shop.yaml", 2, "")
