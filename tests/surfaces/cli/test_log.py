"""`tailrace log` on real logs, as a user runs it, also while they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.changelog import Bounds, LogWriter, Retention, Subscribers
from tailrace.surfaces.cli import app
from tailrace.testing.captures import Row, capture, insert


def tailrace(*arguments: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["log", *map(str, arguments)], input=answer)


def machine(*arguments: str | Path) -> dict[str, Any]:
    done = tailrace(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """A log that is open for writing: 3 transactions, 6 changes, small segments."""
    writer = LogWriter(tmp_path / "data" / "logs" / "shop", "shop", segment_bytes=1)
    writer.append(capture([insert(1), insert(2)], [insert(3)]))
    update = Row("u", {"id": 1}, after={"id": 1, "v": "new"})
    writer.append(capture([update, insert(4), Row("d", {"id": 2}, before={"id": 2})], first_xid=3))
    yield writer
    writer.close()


@pytest.fixture
def data(writer: LogWriter, tmp_path: Path) -> Path:
    Subscribers(writer.storage.root).report("shop/files", 2, required=True)
    return tmp_path / "data"


def test_show(data: Path) -> None:
    done = tailrace("show", "shop", "--data-dir", data)
    assert done.exit_code == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert lines[1:3] == [["source", "shop"], ["offsets", "0 to 6, 6 rows"]]
    assert lines[4:] == [
        ["resumes", "lsn=0/3"],
        ["table", "public.items: 2 columns, key id"],
        ["subscriber", "shop/files: offset 2, 4 rows behind, required"],
    ]


def test_show_for_machines_by_path(data: Path) -> None:
    path = data / "logs" / "shop"
    found = machine("show", path)
    assert (found["path"], found["source"], found["resume"]) == (str(path), "shop", {"lsn": "0/3"})
    assert (found["earliest"], found["end"], found["rows"], found["segments"]) == (0, 6, 6, 2)
    assert found["tables"] == [{"name": "public.items", "columns": 2, "key": ["id"], "versions": 1}]
    assert found["subscribers"] == [
        {"name": "shop/files", "offset": 2, "lag_rows": 4, "required": True, "released": False, "quorum": 0}
    ]
    assert found["bytes"] == sum(file.stat().st_size for file in (path / "segments").iterdir())


def test_show_says_who_is_released_and_who_is_expired(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(LogWriter(path, "shop", segment_bytes=1, manifest_bytes=1)) as writer:
        for number in range(5):
            writer.append(capture([insert(number)], first_xid=number + 1))
    Retention(path).enforce(Bounds(max_bytes=0))
    Subscribers(path).report("shop/slow", 1, required=False)
    Subscribers(path).release("shop/gone", 5)
    told = [line.split()[1:] for line in tailrace("show", path).stdout.splitlines() if line.startswith("subscriber")]
    assert [(name, *words[-2:]) for name, *words in told] == [
        ("shop/gone:", "behind,", "released"),
        ("shop/slow:", "optional,", "expired"),
    ]


def test_the_platform_names_the_data_directory(data: Path, tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text(f"data_dir: {data}\n")
    assert machine("show", "shop", "--platform-config", tmp_path / "platform.yaml")["rows"] == 6


def test_segments(data: Path) -> None:
    found = machine("segments", "shop", "--data-dir", data)["segments"]
    assert [(one["start"], one["end"], one["rows"]) for one in found] == [(0, 3, 3), (3, 6, 3)]
    shown = tailrace("segments", "shop", "--data-dir", data).stdout.splitlines()
    assert [line.split("  ")[1:3] for line in shown] == [
        ["offsets 0 to 3", "3 rows"],
        ["offsets 3 to 6", "3 rows"],
    ]


def test_read(data: Path) -> None:
    shown = tailrace("read", "shop", "--data-dir", data, "--from", "2", "--limit", "2").stdout.splitlines()
    assert [line.split("  ") for line in shown] == [
        ["2", "2023-11-14T22:13:20.000002Z", "c", "public.items", '{"id":3,"v":"x"}'],
        ["3", "2023-11-14T22:13:20.000003Z", "u", "public.items", '{"id":1,"v":"new"}'],
    ]


def test_read_for_machines_sees_what_was_written_since(data: Path, writer: LogWriter) -> None:
    writer.append(capture([insert(9, "late")], first_xid=4))
    found = machine("read", "shop", "--data-dir", data, "--from", "5")["changes"]
    assert [(one["seq"], one["op"], one["key"], one["after"]) for one in found] == [
        (5, "d", '{"id":2}', None),
        (6, "c", '{"id":9}', '{"id":9,"v":"late"}'),
    ]
    assert machine("read", "shop", "--data-dir", data, "--from", "7")["changes"] == []
    assert machine("read", "shop", "--data-dir", data)["changes"][0]["seq"] == 0


def test_forget_asks_first(data: Path) -> None:
    refused = tailrace("forget", "shop", "shop/files", "--data-dir", data, answer="n\n")
    assert refused.exit_code == 1
    assert len(machine("show", "shop", "--data-dir", data)["subscribers"]) == 1
    done = tailrace("forget", "shop", "shop/files", "--data-dir", data, answer="y\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "forgot shop/files")
    assert machine("show", "shop", "--data-dir", data)["subscribers"] == []


def test_forgetting_a_stranger(data: Path) -> None:
    done = tailrace("forget", "shop", "shop/file", "--data-dir", data, "--yes")
    assert done.exit_code == 1
    assert "error[log.no_subscriber]" in done.stderr
    assert "its subscribers are: shop/files" in done.stderr


def test_an_absent_log_names_those_there_are(data: Path) -> None:
    done = tailrace("show", "shpo", "--data-dir", data)
    assert done.exit_code == 1
    assert "error[log.missing] there is no change log 'shpo'" in done.stderr
    assert f"{data / 'logs'} has shop" in done.stderr
