"""The commands about documents, run as a user runs them: real processes, exit codes, both kinds of output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """\
metadata: {name: shop}
spec:
  source:
    type: postgres
    config:
      id: shop-db
      dsn: ${DSN:-postgres://u:hunter2@localhost/shop}
      slot: tailrace_shop
      publication: tailrace_shop
      tables: [public.orders]
  sinks:
    - type: console
      config:
        id: screen
"""


def tailrace(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tailrace.surfaces.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environ}
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    return done


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    return path


def test_a_right_document(shop: Path) -> None:
    done = tailrace("validate", shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ok {shop}: shop: shop-db (postgres) → screen (console)\n"


def test_a_right_document_for_machines(shop: Path) -> None:
    done = tailrace("validate", "--json", shop)
    assert json.loads(done.stdout) == {
        "ok": True,
        "pipelines": [
            {
                "file": str(shop),
                "name": "shop",
                "tenant": "default",
                "source": {"id": "shop-db", "type": "postgres"},
                "sinks": [{"id": "screen", "type": "console"}],
            }
        ],
    }


def test_a_wrong_document_tells_all_and_exits_with_2(shop: Path) -> None:
    shop.write_text(SHOP.replace("tables:", "tabels:").replace("id: screen", "id: ${NOPE}"))
    done = tailrace("validate", shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"error[config.unknown_key] spec.source.config.tabels: unknown key\n"
        f"  at {shop}:10\n  hint: did you mean `tables`?\n"
    ) in done.stderr
    assert "error[config.missing_variable]" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_wrong_document_for_machines(shop: Path) -> None:
    shop.write_text(SHOP.replace("metadata: {name: shop}", "metadata: {nmae: shop}"))
    done = tailrace("validate", "--json", shop)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (2, False)
    assert {problem["code"] for problem in answer["problems"]} == {"config.unknown_key", "config.missing_key"}
    assert {problem["line"] for problem in answer["problems"]} == {1}


@pytest.mark.parametrize("text", ["a: [", "", "- 1", "\x00", "a: !x y"])
def test_broken_yaml(shop: Path, text: str) -> None:
    shop.write_text(text)
    done = tailrace("validate", shop)
    assert done.returncode == 2
    assert f"at {shop}" in done.stderr


def test_an_absent_file(tmp_path: Path) -> None:
    done = tailrace("validate", tmp_path / "absent.yaml")
    assert done.returncode == 2
    assert "error[config.unreadable]" in done.stderr


def test_the_platform_is_checked_too(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text("datadir: x\n")
    done = tailrace("validate", shop, "--platform-config", tmp_path / "platform.yaml")
    assert done.returncode == 2
    assert "did you mean `data_dir`?" in done.stderr


@pytest.mark.parametrize("document", ["pipeline", "platform"])
def test_schema(document: str) -> None:
    done = tailrace("schema", document)
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == document.title()
    assert tailrace("schema", document, "--json").stdout == done.stdout


def test_version() -> None:
    assert tailrace("version").stdout.startswith("tailrace ")
    assert set(json.loads(tailrace("version", "--json").stdout)) == {"tailrace", "python", "pyspark"}


def test_starting_imports_nothing_heavy() -> None:
    script = "import sys, tailrace.surfaces.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not {"pyspark", "pyarrow", "numba", "pydantic", "psycopg"} & set(done.stdout.split())


def test_a_wrong_call() -> None:
    assert tailrace("validate").returncode == 2
    assert tailrace("valdate").returncode == 2
