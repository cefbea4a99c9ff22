"""How often the catalog is looked at beside the stream."""

from __future__ import annotations

import pytest

from tailrace.capture.postgres import catalog_watch, pace

ALWAYS, NEVER = 0.0, 1e9


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is looked at all the time."""
    monkeypatch.setattr(catalog_watch, "LOOK_S", ALWAYS)
    monkeypatch.setattr(pace, "WAIT_S", 0.02)


@pytest.fixture
def rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is looked at once, at the start."""
    monkeypatch.setattr(catalog_watch, "LOOK_S", NEVER)
    monkeypatch.setattr(pace, "WAIT_S", 0.02)
