"""Who gets in: tokens and what they allow, hosts, origins, sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.control.tokens import Scope, Tokens
from tailrace.errors import SetupError
from tailrace.spec import Platform
from tailrace.supervisor.service import Service
from tailrace.surfaces.rest.server import serve
from tests.surfaces.rest.conftest import Asking, document

Make = Callable[..., Asking]


def token_of(service: Service, scope: Scope) -> str:
    return Tokens(service.store).create(scope, scope, actor="test")[1]


def test_without_a_token_nobody_gets_in_where_one_is_required(service: Service, client_of: Make) -> None:
    for token in (None, "tailrace_x_y", "x"):
        answer = client_of(tokens_required=True, token=token).get("/v1/pipelines")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    anyone = client_of(tokens_required=True)
    assert anyone.get("/healthz").json() == {"status": "error"}, "nothing makes actual what is desired"
    assert anyone.get("/health").json()["pipelines"] is None, "the word alone"
    assert anyone.get("/metrics").status_code == 401


def test_a_wrong_token_is_refused_where_none_is_needed(client_of: Make) -> None:
    assert client_of(token="tailrace_x_y").get("/v1/pipelines").status_code == 401


@pytest.mark.parametrize(
    ("scope", "may"), [("view", {"see"}), ("operate", {"see", "make"}), ("admin", {"see", "make", "end"})]
)
def test_a_token_allows_its_scope(service: Service, client_of: Make, scope: Scope, may: set[str]) -> None:
    client_of().post("/v1/pipelines", json=document("other"))
    client = client_of(tokens_required=True, token=token_of(service, scope))
    answers = {
        "see": client.get("/v1/pipelines"),
        "make": client.post("/v1/pipelines", json=document()),
        "end": client.delete("/v1/pipelines/other"),
    }
    assert {name for name, answer in answers.items() if answer.is_success} == may
    assert {answer.status_code for answer in answers.values() if not answer.is_success} <= {403}


def test_the_token_that_the_server_was_started_with_may_do_everything(client_of: Make) -> None:
    client = client_of(tokens_required=True, token="0123456789abcdefghij", own="0123456789abcdefghij")
    assert client.post("/v1/pipelines", json=document()).is_success
    assert client.get("/v1/pipelines/shop").json()["changed_by"] == "TAILRACE_TOKEN"
    assert client.delete("/v1/pipelines/shop").is_success
    assert client_of(tokens_required=True, token="another", own="0123456789abcdefghij").get("/v1/pipelines").is_error


def test_an_open_server_without_a_token_does_not_start(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAILRACE_TOKEN", raising=False)
    platform = Platform.from_document(
        {"data_dir": str(tmp_path / "open"), "server": {"host": "127.0.0.1", "port": 0, "tokens": "always"}}
    )

    def never(address: str) -> None:
        raise AssertionError(f"it listens at {address}")

    with pytest.raises(SetupError) as refused:
        serve(platform, [], never)
    assert (refused.value.code, "token create" in refused.value.hint) == ("serve.no_token", True)
    monkeypatch.setenv("TAILRACE_TOKEN", "short")
    with pytest.raises(SetupError) as weak:
        serve(platform, [], never)
    assert weak.value.code == "serve.weak_token"


def test_a_revoked_token_is_none(service: Service, client_of: Make) -> None:
    token, clear = Tokens(service.store).create("a", "admin", actor="test")
    client = client_of(tokens_required=True, token=clear)
    assert client.get("/v1/pipelines").is_success
    Tokens(service.store).revoke(token.id, actor="test")
    assert client.get("/v1/pipelines").status_code == 401


def test_a_name_that_is_not_ours_is_refused(client_of: Make) -> None:
    for name in ("evil.example", "evil.example:8080", "localhost.evil.example", "", "127.0.0.1@evil.example"):
        assert client_of(host=name).get("/v1/pipelines").status_code in (400, 421), name
    for name in ("127.0.0.1:1", "localhost", "[::1]:8080", "LOCALHOST"):
        assert client_of(host=name).get("/v1/pipelines").is_success, name
    assert client_of(host="cdc.acme.example", hosts=["cdc.acme.example"]).get("/v1/pipelines").is_success


def test_a_page_of_another_site_changes_nothing(client: Asking) -> None:
    foreign = {"Origin": "http://evil.example"}
    answer = client.post("/v1/pipelines", json=document(), headers=foreign)
    assert (answer.status_code, answer.json()["code"]) == (403, "access.origin")
    assert client.get("/v1/pipelines").json() == []
    own = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/v1/pipelines", json=document(), headers=own).is_success


def test_a_request_has_a_bound(client: Asking) -> None:
    large = b" " * (5 << 20)
    assert client.post("/v1/apply", content=large).status_code == 413

    def unannounced() -> Iterator[bytes]:
        yield from (large[: 1 << 20] for _ in range(5))

    assert client.post("/v1/apply", content=unannounced()).status_code == 413


def test_looking_changes_nothing(client: Asking) -> None:
    """No route changes something on GET."""
    client.post("/v1/pipelines", json=document())
    paths = client.get("/openapi.json").json()["paths"]
    before = client.get("/v1/pipelines/shop").json()
    fill = {"{name}": "shop", "{number}": "1", "{run}": "x", "{replay}": "x", "{database}": "public", "{table}": "t"}
    for path, methods in paths.items():
        if "get" in methods and not path.endswith("/events"):
            place = functools.reduce(lambda text, hole: text.replace(*hole), fill.items(), path)
            assert client.get(place).status_code not in (500, 502), place
    assert client.get("/v1/pipelines/shop").json() == before


def test_a_browser_is_told_to_be_careful(client: Asking) -> None:
    headers = client.get("/v1/pipelines").headers
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert "default-src 'self'" in headers["content-security-policy"]
