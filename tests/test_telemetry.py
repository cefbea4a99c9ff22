"""What a process says: JSON and lines for people, at a level that may change, with nothing that is secret."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from tailrace import telemetry
from tailrace.config.secret import MASK
from tailrace.errors import OF_A_RECORD, LogError, ProcessorError, SinkError

CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Other tests say nothing."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), telemetry.level()
    yield
    root.handlers[:] = handlers
    telemetry.set_level(level)


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure("info", "json", stream)
    return stream


def told(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_its_event_and_fields(lines: io.StringIO) -> None:
    log = telemetry.logger(pipeline="shop", sink="lake", source="db", table="public.a")
    log.warning("pipeline.sink_write_error", position="0/16", offset=7, code="sink.unavailable")
    [line] = told(lines)
    assert line.pop("at").endswith("Z")
    assert line == {
        "event": "pipeline.sink_write_error",
        "level": "warning",
        "pipeline": "shop",
        "sink": "lake",
        "source": "db",
        "table": "public.a",
        "position": "0/16",
        "offset": 7,
        "code": "sink.unavailable",
    }


def test_the_level_changes_while_it_runs(lines: io.StringIO) -> None:
    log = telemetry.logger(source="db")
    log.debug("one")
    telemetry.set_level("debug")
    log.debug("two")
    assert telemetry.level() == "debug"
    telemetry.set_level("error")
    log.warning("three")
    log.error("four")
    assert [line["event"] for line in told(lines)] == ["two", "four"]


def test_nothing_is_said_before_it_is_configured(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers[:] = []
    telemetry.logger(source="db").error("source.error")
    assert capfd.readouterr() == ("", "")


def test_a_second_configuration_replaces_the_first(lines: io.StringIO) -> None:
    again = io.StringIO()
    telemetry.configure("info", "human", again)
    telemetry.logger(source="db").info("source.started", position="0/16")
    assert lines.getvalue() == ""
    text = again.getvalue()
    assert "source.started" in text and "source=db" in text and "position=0/16" in text
    assert "\x1b" not in text, "no colours where nobody sees them"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("human", io.StringIO(), False),
    ],
)
def test_people_and_machines(form: telemetry.Format, stream: TextIO, is_json: bool) -> None:
    assert telemetry.is_json(form, stream) == is_json


def test_it_goes_where_standard_error_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that owns the terminal takes standard error over while it is there."""
    telemetry.configure("info", "json")
    above = io.StringIO()
    monkeypatch.setattr(sys, "stderr", above)
    telemetry.logger(source="db").info("source.started")
    assert told(above)[0]["event"] == "source.started"


def test_what_libraries_say_comes_out_the_same_way(lines: io.StringIO) -> None:
    library = logging.getLogger("somebody.else")
    library.info("not this")
    try:
        raise ValueError(CANARY)
    except ValueError:
        library.exception("a connection to postgresql://u:%s@h/db broke", CANARY)
    [line] = told(lines)
    assert (line["event"], line["library"], line["level"]) == ("library.message", "somebody.else", "error")
    assert line["message"] == f"a connection to postgresql://u:{MASK}@h/db broke"
    assert CANARY not in lines.getvalue(), "a traceback may quote a row"


def test_passwords_are_blanked_in_every_field(lines: io.StringIO) -> None:
    dsn = f"postgresql://cdc:{CANARY}@localhost/shop"
    error = LogError("log.io", f"cannot open {dsn}", hint=f"try password={CANARY}", where=dsn)
    telemetry.logger(source=dsn).error("source.error", **telemetry.of_error(error), other=f"token: '{CANARY}'")
    [line] = told(lines)
    assert CANARY not in lines.getvalue()
    assert line["error"] == f"cannot open postgresql://cdc:{MASK}@localhost/shop"


@pytest.mark.parametrize(
    "code", sorted(OF_A_RECORD | telemetry.MAY_QUOTE | {"processor.failed", "processor.bad_answer"})
)
def test_a_message_that_may_quote_a_row_is_withheld(code: str) -> None:
    error = ProcessorError(code, f"cannot take {CANARY}", hint="mend it", where="public.a")
    fields = telemetry.of_error(error)
    assert fields == {"code": code, "error": telemetry.WITHHELD, "hint": "mend it", "where": "public.a"}


def test_what_a_target_answered_is_left_out() -> None:
    error = SinkError("sink.unavailable", f"https://h:8443/in answered 503 Service Unavailable: {CANARY}")
    assert telemetry.of_error(error) == {
        "code": "sink.unavailable",
        "error": "https://h:8443/in answered 503 Service Unavailable",
    }


class Full(io.StringIO):
    """A file on a full disk."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(errno.ENOSPC, "no space")


def test_a_full_disk_is_no_reason_to_end(capfd: pytest.CaptureFixture[str]) -> None:
    full = Full()
    telemetry.configure("info", "json", full)
    telemetry.logger(source="db").error("source.error")
    assert full.tries == 1
    assert capfd.readouterr().err == ""


def test_a_closed_stream_is_no_reason_to_end(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        telemetry.configure("info", "json", file)
    telemetry.logger(source="db").error("source.error")
