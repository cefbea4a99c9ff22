"""The data directory: nobody else on the machine reads what is in it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.capture.staging import StagedFile
from tailrace.capture.tap import write_status
from tailrace.changelog import LogWriter, Subscribers
from tailrace.control import Store
from tailrace.errors import Action, SetupError, decide
from tailrace.spark.control import Control, Orders
from tailrace.supervisor.layout import Layout, run_lock


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual one: everybody may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable_by_others(root: Path) -> list[str]:
    """What has permissions for anybody but its owner."""
    return sorted(str(path) for path in (root, *root.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077)


def write_everything(layout: Layout) -> None:
    """Of each kind of file that Python processes write, one."""
    with closing(LogWriter(layout.log("shop"), "shop")), StagedFile(layout.staged("shop") / "1.arrow"):
        Subscribers(layout.log("shop")).report("feed/files", 0, required=True)
    with closing(Store(layout.store)) as store, store.transaction():
        pass
    write_status(layout.tap_status("shop"), {"state": "running"})
    control = Control(layout.sink("feed", "files"))
    control.give(Orders())
    control.answer()


def test_what_is_written_is_its_owners_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    with run_lock(layout, "feed"):
        layout.sink("feed", "files").mkdir(mode=0o700)
        write_everything(layout)
        assert readable_by_others(layout.root) == []


def test_what_was_open_to_others_is_closed_at_the_next_start(tmp_path: Path) -> None:
    """The directory itself, and what is not ours, is left alone."""
    layout = Layout(tmp_path)
    (tmp_path / "mine").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    for folder in ("logs", "taps", "pipelines", "staged", "verify"):
        (tmp_path / folder).mkdir(mode=0o755)
    for file in ("control.db", "control.db-wal", "spark.log"):
        (tmp_path / file).touch(0o644)
    with run_lock(layout, "feed"):
        assert readable_by_others(tmp_path) == [str(tmp_path), str(tmp_path / "mine")]


def test_a_store_that_is_gone_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.open_store().close()
    LogWriter(layout.log("shop"), "shop").close()
    layout.open_store().close()
    for file in layout.root.glob("control.db*"):
        file.unlink()
    with pytest.raises(SetupError) as caught:
        layout.open_store()
    assert caught.value.code == "store.lost"
    assert decide(caught.value) is Action.STOP
    assert not layout.has_store()
    *_, way_out = caught.value.hint.split(": ")
    subprocess.run(way_out, shell=True, check=True)
    layout.open_store().close()
