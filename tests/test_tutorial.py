"""The tutorial is real: its commands are run as they stand there, one after another, and say what it says they do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.machine import java
from tailrace.testing.servers import PostgresServer

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?P<left_out><!--[^\n]*-->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


def blocks(language: str) -> list[str]:
    """The blocks of a language, without those that a comment before them takes out."""
    found = BLOCK.finditer(TUTORIAL.read_text())
    return [block["text"] for block in found if block["language"] == language and not block["left_out"]]


def expected() -> list[re.Pattern[str]]:
    """The lines that the tutorial says will be seen; `…` stands for anything."""
    lines = [line for block in blocks("text") for line in block.splitlines() if line != "…"]
    return [re.compile(".*".join(map(re.escape, line.split("…")))) for line in lines]


@pytest.mark.timeout(400)
def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    with PostgresServer() as server:
        code, told = run("set -eux\n" + "".join(blocks("sh")), server, tmp_path)
    log = tmp_path / "first-hour" / "run.log"
    assert code == 0, f"{told}\n{log.read_text() if log.exists() else ''}"
    said = "\n".join(line for line in told.splitlines() if not line.startswith("+"))  # without the commands themselves
    assert not [line.pattern for line in expected() if not line.search(said)], told


def run(script: str, server: PostgresServer, folder: Path) -> tuple[int, str]:
    """Exit code and output of a shell that has what the tutorial says the reader has."""
    programs = [str(Path(sys.executable).parent), str(server.bin("psql").parent)]
    environment = {
        **os.environ,
        "SHOP_DSN": server.dsn(),
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        "JAVA_TOOL_OPTIONS": java.QUICK,
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = shell.communicate(timeout=380)
    finally:
        _end_all(shell.pid)
    return shell.returncode, told


def _end_all(group: int) -> None:
    """Whatever a failed script left in the background."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
