"""`tailrace token`: made, listed and made void where the data directory is."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.control.tokens import Tokens
from tailrace.errors import ConfigError
from tailrace.surfaces.cli import app
from tailrace.surfaces.cli.token import state_of
from tests.surfaces.in_process import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, tokens_required=True) as made:
        yield made


def tailrace(folder: Path, *words: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["token", *words, "--data-dir", str(folder / "data")], catch_exceptions=False)
    assert done.exit_code == exit_code, done.output
    return done.stdout


def machine(folder: Path, *words: str, exit_code: int = 0) -> dict[str, Any]:
    [line] = tailrace(folder, *words, "--json", exit_code=exit_code).splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_token_is_printed_once_and_opens_the_running_server(tmp_path: Path, served: Served) -> None:
    clear = tailrace(tmp_path, "create", "ci", "--scope", "operate").strip()
    assert served.client(clear).pipelines() == []
    listed = tailrace(tmp_path, "list") + json.dumps(machine(tmp_path, "list"))
    assert "ci" in listed
    secret = clear.split("_", 2)[2]
    assert len(secret) > 20 and secret not in listed
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_token_that_is_revoked_opens_nothing(tmp_path: Path, served: Served) -> None:
    first, second = (machine(tmp_path, "create", name) for name in ("one", "two"))
    assert machine(tmp_path, "revoke", "one")["revoked"] == first["id"]
    assert machine(tmp_path, "revoke", second["id"])["name"] == "two"
    for each in (first, second):
        with pytest.raises(ConfigError) as caught:
            served.client(each["token"]).pipelines()
        assert caught.value.code == "access.denied"
    states = {each["name"]: each["state"] for each in machine(tmp_path, "list")["tokens"]}
    assert states == {"one": "revoked", "two": "revoked"}
    [problem] = machine(tmp_path, "revoke", "one", exit_code=2)["problems"]
    assert (problem["code"], problem["hint"]) == ("token.missing", "tailrace token list shows which there are")
    machine(tmp_path, "create", "one")  # the name is free again


def test_what_a_token_may_is_told(tmp_path: Path) -> None:
    made = machine(tmp_path, "create", "boss", "--scope", "admin", "--values", "--expires", "90d")
    assert (made["scope"], made["sees_values"], made["state"]) == ("admin", True, "valid")
    assert made["expires_us"] - made["created_us"] == pytest.approx(90 * 86400 * 1e6, rel=1e-3)
    row = tailrace(tmp_path, "list").splitlines()[1].split()
    assert row[1:5] == ["boss", "admin", "yes", "valid"]
    [problem] = machine(tmp_path, "create", "boss", exit_code=2)["problems"]
    assert problem["code"] == "store.conflict"
    for expires in ("soon", "0s"):
        [problem] = machine(tmp_path, "create", "other", "--expires", expires, exit_code=2)["problems"]
        assert problem["code"] == "token.bad_expiry"
    tailrace(tmp_path, "create", "other", "--scope", "root", exit_code=2)


def test_a_token_that_has_expired_is_listed_as_such(tmp_path: Path, served: Served) -> None:
    Tokens(served.service.store).create("old", "view", expires_us=1, actor="test")
    [told] = machine(tmp_path, "list")["tokens"]
    assert told["state"] == "expired"
    assert state_of(Tokens(served.service.store).list()[0], 0.0) == "valid"


def test_tokens_can_be_made_before_the_first_start(tmp_path: Path) -> None:
    assert tailrace(tmp_path, "list") == "there are no tokens: tailrace token create makes one\n"
    clear = tailrace(tmp_path, "create", "first").strip()
    assert stat.S_IMODE((tmp_path / "data" / "control.db").stat().st_mode) == 0o600
    with serving(tmp_path, tokens_required=True) as served:
        assert served.client(clear).pipelines() == []
