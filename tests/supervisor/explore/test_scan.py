"""Walks over a log from which retention takes away what they have not reached."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.changelog import Bounds as Kept
from tailrace.changelog import LogWriter, Retention, history
from tailrace.changelog.history import History
from tailrace.supervisor.explore.scan import Bounds, Scan
from tailrace.testing.captures import capture, insert


@pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest first"])
def test_what_goes_meanwhile_is_counted(tmp_path: Path, newest_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STRETCH_ROWS", 1)
    with closing(LogWriter(tmp_path / "log", "shop", segment_bytes=1, manifest_bytes=1)) as writer:
        for number in range(10):
            writer.append(capture([insert(2 * number), insert(2 * number + 1)], first_xid=number + 1))
    scan = Scan(History(tmp_path / "log"), 0, 20, Bounds(seconds=600), newest_first=newest_first)
    pieces = scan.pieces(lambda table: True)
    assert next(pieces).num_rows == 2
    Retention(tmp_path / "log").enforce(Kept(max_bytes=0))
    rest = sum(piece.num_rows for piece in pieces)
    assert scan.is_done and not scan.stopped
    assert 2 + rest == scan.changes
    assert scan.changes + scan.lost == 20
    assert scan.lost > 0
