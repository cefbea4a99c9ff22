"""`tailrace new sink`: what it writes is installed as its user installs it, tests itself, and is used by a document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailrace.contracts import Delivery, Span
from tailrace.errors import ConfigError, SetupError
from tailrace.scaffold import new_sink
from tailrace.scaffold.sink import LineSink
from tailrace.testing.suites.sinks import batch_for, deliver, versions

DOCUMENT = """\
metadata: {name: shop}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgres://u@localhost/shop", tables: [public.orders]}}
  sinks: [{type: acme_lines, config: {id: mine, path: lines.txt}}]
"""


@dataclass(frozen=True)
class Author:
    """Somebody with a folder, and another one that Python finds what they install in."""

    folder: Path
    installed: Path

    def calls(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(self.installed), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            env={**os.environ, "PYTHONPATH": path},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def author(tmp_path: Path) -> Author:
    for name in ("work", "installed"):
        (tmp_path / name).mkdir()
    return Author(tmp_path / "work", tmp_path / "installed")


@pytest.mark.timeout(400)
def test_a_new_sink_is_installed_tests_itself_and_is_used(author: Author) -> None:
    document = author.folder / "shop.yaml"
    document.write_text(DOCUMENT)
    refused = author.calls("tailrace", "validate", document)
    assert refused.returncode == 2 and "config.unknown_type" in refused.stderr

    made = author.calls("tailrace", "new", "sink", "acme_lines")
    assert (made.returncode, made.stderr) == (0, "")
    assert "pip install -e 'tailrace-sink-acme-lines[test]'" in made.stdout
    pip = ("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", author.installed)
    installed = author.calls(*pip, "./tailrace-sink-acme-lines")
    assert installed.returncode == 0, installed.stderr

    tested = author.calls("pytest", "-p", "no:cacheprovider", "tailrace-sink-acme-lines")
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout and "skipped" not in tested.stdout
    used = author.calls("tailrace", "validate", "--json", document)
    assert used.returncode == 0, used.stderr
    [pipeline] = json.loads(used.stdout)["pipelines"]
    assert pipeline["sinks"] == [{"id": "mine", "type": "acme_lines"}]


def test_nothing_is_overwritten(author: Author) -> None:
    new_sink("lines", author.folder)
    module = author.folder / "tailrace-sink-lines" / "tailrace_sink_lines.py"
    module.write_text("mine")
    again = author.calls("tailrace", "new", "sink", "lines", "--json")
    [problem] = json.loads(again.stdout)["problems"]
    assert (again.returncode, problem["code"], module.read_text()) == (2, "config.exists", "mine")


def test_what_was_written_is_told_to_machines(author: Author) -> None:
    done = author.calls("tailrace", "new", "sink", "acme-lines", "--into", "here/and/there", "--json")
    told = json.loads(done.stdout)
    assert (told["ok"], told["type"]) == (True, "acme-lines")
    names = ["README.md", "pyproject.toml", "tailrace_sink_acme_lines.py", "test_tailrace_sink_acme_lines.py"]
    folder = "here/and/there/tailrace-sink-acme-lines"
    assert told["files"] == [f"{folder}/{name}" for name in names]
    assert len((author.folder / folder / "README.md").read_text().splitlines()) == 3
    assert "class AcmeLinesSink(RecordSink)" in (author.folder / folder / names[2]).read_text()


@pytest.mark.parametrize("name", ["", "Lines", "1st", "a--b", "../up", "a.b", "a b", "lines-", "é", "x" * 41])
def test_a_name_that_cannot_be_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        new_sink(name, tmp_path)
    assert refused.value.code == "config.invalid_value" and refused.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["kafka", "clickhouse"])
def test_a_name_that_is_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        new_sink(name, tmp_path)
    assert refused.value.code == "config.name_taken"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError) as refused:
        new_sink("lines", tmp_path / "file")
    assert refused.value.code == "setup.unwritable" and "file" in refused.value.message


def test_the_sample_begins_a_line_of_its_own_behind_a_half_one(tmp_path: Path) -> None:
    sink, changes = LineSink(id="mine", path=tmp_path / "lines.txt"), versions(0, keys=2, rounds=2)
    deliver(sink, changes)
    whole = sink.path.read_bytes()
    sink.path.write_bytes(whole[:-7])
    deliver(sink, changes)
    assert sink.path.read_bytes() == whole[:-7] + b"\n" + whole


def test_the_sample_waits_for_its_place(tmp_path: Path) -> None:
    sink, changes = LineSink(id="mine", path=tmp_path / "away" / "lines.txt"), versions(0, keys=1, rounds=1)
    writer = sink.open(Delivery("shop", "demo", "shop-db"), Span("log", 0, 1), 0)
    with pytest.raises(Exception, match="No such file") as failure:
        writer.write(iter([batch_for(sink, changes)]))
    assert failure.value.code == "sink.unavailable"  # type: ignore[attr-defined]
