"""How `tailrace status --watch` looks: in a terminal, in a file, to a machine, and while the server is away."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from tailrace.errors import SetupError
from tailrace.surfaces.answers import Pipeline
from tailrace.surfaces.cli import board, live
from tailrace.surfaces.cli.figures import status_of, worst_first


def pipeline(name: str = "shop", state: str = "running", rows: int = 0, **more: Any) -> Pipeline:
    sink = {"id": "files", "type": "file", "state": "running", "rows": rows, "lag_rows": 7, "lag_seconds": 1.5}
    source = {"id": "db", "state": "running", "rows": 1234, "lag_bytes": 0}
    table = {"sink": "files", "table": "public.orders", "rows": rows, "last_change_at": time.time() - 2}
    told = {
        "name": name,
        "status": state,
        "current": True,
        "since": time.time() - 30,
        "desired": "running",
        "matters": [],
        "version": 1,
        "changed_at": 0,
        "changed_by": "local",
        "spec": {},
        "ops": {"source": source, "sinks": [sink], "tables": [table], "lag_seconds": 1.5},
    }
    return Pipeline.model_validate({**told, **more})


AWAY = {
    "part": "sink:files",
    "state": "degraded",
    "code": "sink.unavailable",
    "message": "the disk is full",
    "hint": "free some space",
}


def seen(found: list[Pipeline]) -> live.Rates:
    rates = live.Rates()
    rates.add(status_of(found, 1000.0))
    return rates


def drawn(found: list[Pipeline], rates: live.Rates, lost: str = "", *, whole: bool = False) -> str:
    shown = io.StringIO()
    Console(file=shown, width=160).print(board.picture(found, rates, lost, whole=whole))
    return shown.getvalue()


def test_the_picture_has_rates_and_reasons_beside_their_pipelines() -> None:
    rates = live.Rates()
    for at, rows in ((1000.0, 1000), (1002.0, 5000)):
        rates.add(status_of([pipeline(rows=rows)], at))
    text = drawn([pipeline("bad", "degraded", matters=[AWAY]), pipeline(rows=5000)], rates)
    bad, good = text.index("bad"), text.index("shop")
    assert bad < text.index("the disk is full") < good
    assert "hint: free some space" in text
    for part in ("5,000", "2,000", "1.5 s", "30 s"):
        assert part in text[good:]
    assert "public.orders" not in text
    whole = drawn([pipeline(rows=5000)], rates, whole=True)
    for part in ("public.orders", "files (file)", "1,234", "7 rows, 1.5 s"):
        assert part in whole


def test_what_a_server_says_is_not_taken_for_markup() -> None:
    found = [pipeline(matters=[{**AWAY, "message": "no [red]route[/] to host"}])]
    text = drawn(found, seen(found))
    assert "no [red]route[/] to host" in text


def test_a_state_of_a_newer_server_is_shown_and_taken_for_bad() -> None:
    found = worst_first([pipeline("a", "paused"), pipeline("b"), pipeline("c", "exploding"), pipeline("d", "failed")])
    assert [each.name for each in found] == ["c", "d", "b", "a"]
    assert "exploding" in drawn(found, seen(found))


class Ended(Exception):
    """The watching is over."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Watches what a story tells, a look a second, until it ends."""
    now = [0.0]
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def watch(*story: Pipeline | Exception, as_json: bool = False, whole: bool = False) -> None:
        left: Iterator[Pipeline | Exception] = iter(story)

        def look() -> list[Pipeline]:
            found = next(left, Ended())
            if isinstance(found, Exception):
                raise found
            return [found]

        with board.shown(as_json, whole=whole) as show, pytest.raises(Ended):
            board.watch(look, show)

    return watch


def test_plain_lines_come_at_once_when_a_state_changes(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fixed: dict[str, Any] = {"ops": None, "since": None}
    same = [pipeline(state="starting", **fixed)] * 3
    watched(*same, pipeline(**fixed), pipeline(state="degraded", matters=[AWAY], **fixed))
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told if line.startswith("shop ")] == [
        ["shop", "starting"],
        ["shop", "running"],
        ["shop", "degraded"],
    ]
    assert told[-2:] == ["shop: sink:files: error[sink.unavailable]: the disk is full", "  hint: free some space"]


def test_a_server_that_goes_away_is_waited_for_and_what_is_shown_is_old(
    watched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    away = SetupError("server.unreachable", "no server answers", hint="start one")
    watched(pipeline(), away, pipeline(state="paused"), as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["ok"], each["pipelines"][0]["status"]) for each in told] == [
        (True, "running"),
        (False, "running"),
        (True, "paused"),
    ]
    assert "no server answers" in told[1]["lost"]
    watched(pipeline(), away)
    assert "not known for 0 s: no server answers" in capsys.readouterr().out
    assert "not known for 3 s" in drawn([pipeline()], seen([pipeline()]), "not known for 3 s")


def test_whatever_else_goes_wrong_ends_it(watched: Any) -> None:
    with pytest.raises(SetupError) as caught:
        watched(SetupError("server.unreachable", "no server answers", hint="start one"))  # there never was one
    assert caught.value.code == "server.unreachable"
