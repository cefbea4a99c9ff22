"""The worker daemon: what it forgets, and what its workers still can do."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.spark.daemon import forget_archives


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    names = ["pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.4.jar", "users.zip", "users.jar"]
    for name in names:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("pyspark/__init__.py", "")
            archive.writestr("py4j/__init__.py", "")
    return [str(tmp_path / name) for name in names]


def test_sparks_own_archives_go_and_the_users_stay(archives: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*archives, *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(archives))
    forget_archives()
    assert [path for path in sys.path if path in archives] == archives[3:]
    assert [path for path in archives if path in sys.path_importer_cache] == archives[3:]


def test_archives_stay_where_pyspark_is_in_no_other_place(archives: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", archives[:3])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    forget_archives()
    assert sys.path == archives[:3]


def test_workers_have_no_archive_to_read_again(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            archives = [path for path in sys.path if path.endswith((".zip", ".jar")) and Path(path).exists()]
            yield pa.RecordBatch.from_pydict({"path": pa.array(archives, pa.string())})

    assert spark.range(1).mapInArrow(look, "path string").collect() == []


def test_the_daemon_leaves_nothing_of_itself_on_sparks_pipes(spark: SparkSession) -> None:
    """A sentinel that held the daemon's standard streams would keep Spark waiting for their end."""
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    leaders = [child for child in _python_children() if os.getsid(child.pid) == child.pid]
    assert leaders
    assert not any(_has_pipes(leader) for leader in leaders)


def _python_children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name().startswith("python")]


def _has_pipes(process: psutil.Process) -> bool:
    fds = Path(f"/proc/{process.pid}/fd")
    return any("pipe:" in str(fd.readlink()) for fd in fds.iterdir())
