"""Captures of tables whose schema changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Change, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]


def looked(run: Capturing) -> None:
    """The capture has looked at the catalog at least once, and taken in what it saw."""
    eventually(lambda: run.error or run.stream.looks)


def started(capturing: Start, db: Database, **settings: Any) -> Capturing:
    run = capturing(db, **settings)
    looked(run)
    return run


def steps(rows: list[Change]) -> list[Any]:
    """What each `s` change says has changed."""
    return [json.loads(row["after"])["changes"] for row in rows if row["op"] == "s"]
