"""What `make quick` runs, and that no test of it can start a JVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.machine.java import java_home

HERE = Path(__file__).parent
NO_JAVA = HERE / "no_java"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Java that `make quick` names. Which one there is, is found once per process: here it is found anew."""
    monkeypatch.setenv("JAVA_HOME", str(NO_JAVA))
    java_home.cache_clear()
    yield
    java_home.cache_clear()


def test_fixtures_versions_and_marks_decide() -> None:
    chosen = collected("spark/test_daemon.py", "capture/postgres/test_drift.py", "machine/test_java.py")
    assert "test_sparks_own_archives_go_and_the_users_stay" in chosen
    assert "test_workers_have_no_archive_to_read_again" not in chosen, "it has the fixture `spark`"
    assert "test_spark_starts_on_the_java_of_the_wheel" not in chosen, "it is marked as slow"
    assert [name for name in chosen if name.endswith("[18]")]
    assert not [name for name in chosen if name.endswith("[15]")], "it has an older PostgreSQL"


def collected(*files: str) -> list[str]:
    """The names of the quick tests of these files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "quick"]
    done = subprocess.run(
        [*command, *(str(HERE / file) for file in files)], capture_output=True, text=True, check=True, cwd=HERE.parent
    )
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_jvm_is_refused_with_what_to_do(refused: None) -> None:
    assert java_home() == NO_JAVA
    started = subprocess.run([NO_JAVA / "bin/java", "-jar", "x"], capture_output=True, text=True, check=False)
    assert (started.returncode, "pytest.mark.slow" in started.stderr) == (1, True)
