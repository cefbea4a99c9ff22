"""What a run ends with, when several parts of it failed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import RunError, SetupError, SourceError, TailraceError, located, together
from tailrace.spec import Platform
from tailrace.supervisor.run import Supervisor
from tailrace.supervisor.status import SnapshotStatus
from tailrace.surfaces.cli import output

DENIED = SetupError("source.privilege", "row-level security", hint="BYPASSRLS", where="public.a")
CRASHED = SourceError("snapshot.crashed", "KeyError", hint="report it")


class Snapshotting:
    """A source's snapshots, as a run sees them."""

    def __init__(self, *failures: TailraceError) -> None:
        self.failures, self.failure = failures, None

    def status(self) -> tuple[SnapshotStatus, ...]:
        return tuple(SnapshotStatus("s", "r", each.where, "failed", 0, None, each.as_dict()) for each in self.failures)

    def warnings(self) -> tuple[str, ...]:
        return ()


def run_of(folder: Path, **snapshots: Any) -> Supervisor:
    supervisor = Supervisor([], Platform(data_dir=folder))
    supervisor._snapshots = snapshots
    return supervisor


def test_every_failed_table_of_every_source_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, shop=Snapshotting(DENIED, CRASHED), depot=Snapshotting(DENIED))
    with pytest.raises(RunError) as raised:
        run._raise_failure()
    found = [(each.code, each.where) for each in raised.value.errors]
    assert found == [
        ("source.privilege", "public.a"),
        ("snapshot.crashed", "snapshot shop"),
        ("source.privilege", "public.a"),
    ]
    assert raised.value.exit_code == 1
    assert [problem["code"] for problem in output._problems(raised.value)] == [code for code, _ in found]


def test_one_failure_is_itself(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as raised:
        run_of(tmp_path, shop=Snapshotting(DENIED), depot=Snapshotting())._raise_failure()
    assert raised.value is DENIED
    run_of(tmp_path, shop=Snapshotting())._raise_failure()


def test_errors_that_are_one_keep_what_they_agree_on() -> None:
    both = together([DENIED, DENIED])
    assert both is not None
    assert both.exit_code == SetupError.exit_code
    assert isinstance(both, RunError)
    again = pickle.loads(pickle.dumps(both))
    assert [each.as_dict() for each in again.errors] == [DENIED.as_dict()] * 2
    assert located(CRASHED, "here").where == "here"
    assert located(DENIED, "here") is DENIED
