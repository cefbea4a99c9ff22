"""The client of a server: what it brings back, and what it says when there is no such thing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.config.problems import DocumentError
from tailrace.errors import ConfigError, SetupError, TailraceError
from tailrace.surfaces.client import Client, connect
from tailrace.testing.servers import HttpEndpoint
from tailrace.testing.servers.http import Rule
from tailrace.testing.servers.process import free_port
from tests.capture.postgres.authority import Authority
from tests.surfaces.in_process import Served, document, serving

SECRET = "tailrace_0123456789ab_this-must-not-be-seen"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as made:
        yield made


def failure(kind: type[TailraceError], call: Any, *arguments: Any, **named: Any) -> TailraceError:
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    return caught.value


def test_a_document_is_planned_applied_and_found(served: Served) -> None:
    client = served.client()
    plan = client.plan(document())
    assert (plan.pipeline, plan.version, [step.effect for step in plan.steps]) == ("shop", 0, ["new"])
    assert client.pipelines() == []
    done = client.apply(document(), plan.hash)
    assert (done.outcome, done.pipeline.name, done.pipeline.desired) == ("created", "shop", "running")
    client.apply(document("other"), client.plan(document("other")).hash)
    found = client.pipeline("shop")
    assert (found.status, found.current, found.version, found.labels) == ("created", False, 1, {"team": "pay"})
    assert found.as_json()["spec"]["spec"] == document()["spec"]
    assert [each.name for each in client.pipelines()] == ["other", "shop"]
    assert [each.name for each in client.pipelines(["team=pay"])] == ["other", "shop"]
    assert client.pipelines(["team=ops"]) == []


def test_a_pipeline_is_turned_and_deleted(served: Served) -> None:
    client = served.client()
    client.apply(document(), client.plan(document()).hash)
    assert [client.pause("shop").desired, client.stop("shop").desired, client.resume("shop").desired] == [
        "paused",
        "stopped",
        "running",
    ]
    client.delete("shop")
    assert failure(ConfigError, client.pipeline, "shop").code == "pipeline.missing"
    assert failure(ConfigError, client.delete, "shop").code == "pipeline.missing"


def test_a_status_is_current_once_it_is_of_the_newest_version_and_wish(served: Served) -> None:
    client = served.client()
    client.apply(document(), client.plan(document()).hash)
    served.pretend("shop", "running")
    assert client.pipeline("shop").current
    assert not client.pause("shop").current
    served.pretend("shop", "paused")
    assert client.pipeline("shop").current
    changed = document(format="parquet")
    assert not client.apply(changed, client.plan(changed).hash).pipeline.current
    served.pretend("shop", "failed")
    assert not client.resume("shop").current  # it is tried anew


@pytest.mark.parametrize("name", ["../pipelines", "..", "shop/pause", "", "a b", "ä", "shop?x=1"])
def test_what_cannot_be_a_name_is_not_asked_for(name: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    client = Client(transport=httpx.MockTransport(answer))
    for call in (client.pipeline, client.pause, client.delete):
        assert failure(ConfigError, call, name).code == "pipeline.missing"


def test_what_is_wrong_with_a_document_comes_back_whole(served: Served) -> None:
    wrong = document(formatt="csv", rol=3)
    error = failure(DocumentError, served.client().plan, wrong)
    assert isinstance(error, DocumentError)
    assert [(each.code, each.path) for each in error.problems] == [
        ("config.unknown_key", "spec.sinks[0].config.formatt"),
        ("config.unknown_key", "spec.sinks[0].config.rol"),
    ]
    assert "did you mean `format`?" in error.problems[0].hint


def test_an_outdated_plan_is_refused(served: Served) -> None:
    client = served.client()
    plan = client.plan(document())
    client.apply(document(format="parquet"), client.plan(document(format="parquet")).hash)
    error = failure(ConfigError, client.apply, document(), plan.hash)
    assert (error.code, error.exit_code, error.hint) == (
        "plan.outdated",
        2,
        "look at the plan of now, and apply that one",
    )
    assert client.pipeline("shop").version == 1


def test_a_token_may_what_its_scope_says(tmp_path: Path) -> None:
    with serving(tmp_path, tokens_required=True) as served:
        for token in (None, SECRET):
            error = failure(ConfigError, served.client(token).pipelines)
            assert (error.code, error.exit_code) == ("access.denied", 2)
            assert SECRET not in f"{error} {error.hint}"
        viewer, operator = (served.client(served.token(scope, scope)) for scope in ("view", "operate"))
        assert viewer.pipelines() == []
        assert failure(ConfigError, viewer.apply, document(), "x").code == "access.forbidden"
        operator.apply(document(), operator.plan(document()).hash)
        assert failure(ConfigError, operator.delete, "shop").code == "access.forbidden"
        served.client(served.token("boss", "admin")).delete("shop")


def test_events_are_told_and_end_where_nobody_follows(served: Served) -> None:
    client = served.client()
    client.apply(document(), client.plan(document()).hash)
    client.pause("shop")
    found = list(client.events(0, follow=False))
    assert [(each.number, each.type, each.name) for each in found] == [
        (1, "document.put", "shop"),
        (2, "pipeline.desire", "shop"),
        (3, "pipeline.desire", "shop"),
    ]
    assert [each.number for each in client.events(2, follow=False)] == [3]
    assert list(client.events(None, follow=False)) == []


def test_a_server_that_is_away_is_told_with_the_way_out() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for call in (Client(url, SECRET).pipelines, Client(url, SECRET).is_alive):
        error = failure(SetupError, call)
        assert (error.code, error.exit_code, error.where) == ("server.unreachable", 3, "TAILRACE_URL")
        assert url in error.message
        assert "`tailrace serve`" in error.hint and "TAILRACE_URL" in error.hint
        assert SECRET not in f"{error} {error.hint} {error.as_dict()}"


def test_an_event_stream_that_breaks_is_a_server_that_is_away(endpoint: HttpEndpoint) -> None:
    endpoint.answer(Rule("/broken", status=0))
    error = failure(SetupError, lambda: list(Client(f"{endpoint.url}/broken").events(None, follow=True)))
    assert error.code == "server.unreachable"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>hello</html>"),
        httpx.Response(200, json={"some": "thing"}),
        httpx.Response(502, text="Bad gateway"),
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(302, headers={"Location": "https://elsewhere.example/"}),
        httpx.Response(500, json=[1]),
    ],
    ids=["page", "json", "proxy", "other", "elsewhere", "list"],
)
def test_who_is_no_server_of_ours_is_told(answer: httpx.Response) -> None:
    asked: list[httpx.URL] = []

    def told(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return answer

    error = failure(SetupError, Client("http://cdc.example/x", SECRET, httpx.MockTransport(told)).pipelines)
    assert (error.code, error.where) == ("server.answer", "TAILRACE_URL")
    assert f"HTTP {answer.status_code}" in error.message
    assert [url.host for url in asked] == ["cdc.example"]  # a token goes nowhere else
    assert asked[0].path == "/x/v1/pipelines"


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://a/", "http://", "http://u:hidden@a", "http://a:x", "http://a?b=c", "a"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    error = failure(ConfigError, Client, url)
    assert (error.code, error.where) == ("server.url", "TAILRACE_URL")
    assert "hidden" not in str(error)


@pytest.mark.parametrize("token", ["two\nlines-of-it", "schlüssel", "  ", "a b-of-it"])
def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    error = failure(ConfigError, Client, "http://127.0.0.1:8080", token)
    assert (error.code, error.where) == ("server.token", "TAILRACE_TOKEN")
    assert token not in f"{error} {error.hint}"


def test_the_environment_says_which_server(endpoint: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect({}).url == "http://127.0.0.1:8080"
    assert connect({"TAILRACE_URL": "https://cdc.example/", "TAILRACE_TOKEN": ""}).url == "https://cdc.example"
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with connect({"TAILRACE_URL": endpoint.url, "TAILRACE_TOKEN": f"{SECRET}\n"}) as client:
        assert failure(SetupError, client.pipelines).code == "server.answer"  # past the proxy, which is away
    [asked] = [each for each in endpoint.requests() if each.path.startswith("/v1/pipelines")]
    assert asked.headers["authorization"] == f"Bearer {SECRET}"


def test_a_server_whose_certificate_nobody_vouches_for_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "authority")
    mine = authority.sign("localhost", "IP:127.0.0.1")
    with HttpEndpoint(cert=mine.cert, key=mine.key) as endpoint:
        error = failure(SetupError, Client(endpoint.url, SECRET).pipelines)
        assert (error.code, endpoint.requests()) == ("server.tls", [])
        assert "SSL_CERT_FILE" in error.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
        assert failure(SetupError, Client(endpoint.url, SECRET).pipelines).code == "server.answer"
