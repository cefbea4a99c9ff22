"""Who may see the page, and who may do something with it."""

from __future__ import annotations

import httpx
import pytest

from tailrace.control.tokens import Scope
from tests.surfaces.page.recorded import Recorded, document, running


def log_in(client: httpx.Client, service: Recorded, scope: Scope) -> httpx.Response:
    _, clear = service.tokens.create(scope, scope, actor="test")
    return client.post("/login", data={"token": clear, "next": "/pipeline/shop"})


@pytest.fixture(autouse=True)
def shop(service: Recorded) -> None:
    service.apply(document("shop"), actor="test")
    service.show(running("shop"))


def test_without_a_token_everything_leads_to_the_login(stranger: httpx.Client) -> None:
    for path in ("/", "/pipeline/shop", "/pipeline/shop/document", "/new", "/admin", "/api"):
        answer = stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login?next="), path
    assert stranger.get("/login").status_code == 200
    assert stranger.get("/static/page.css").status_code == 200


def test_a_login_leads_where_one_wanted_to_go_and_nowhere_else(stranger: httpx.Client, service: Recorded) -> None:
    answer = log_in(stranger, service, "view")
    assert (answer.status_code, answer.headers["location"]) == (303, "/pipeline/shop")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    for place in ("//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        _, clear = service.tokens.create(place, "view", actor="test")
        assert stranger.post("/login", data={"token": clear, "next": place}).headers["location"] == "/", place


def test_a_token_that_is_not_valid_is_refused(stranger: httpx.Client) -> None:
    answer = stranger.post("/login", data={"token": "tailrace_no_token"})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers


def test_a_cookie_that_is_valid_no_longer_goes(browser: httpx.Client) -> None:
    """Where no token is needed it would keep its visitor out."""
    browser.cookies.set("tailrace_token", "tailrace_old_one", domain="127.0.0.1")
    assert browser.get("/").headers["location"].startswith("/login")
    assert browser.get("/").status_code == 200


def test_each_may_what_his_token_says(stranger: httpx.Client, service: Recorded) -> None:
    log_in(stranger, service, "view")
    assert stranger.get("/pipeline/shop").status_code == 200
    assert "Pause" not in stranger.get("/pipeline/shop").text
    for path in ("/pipeline/shop/pause", "/pipeline/shop/delete", "/document/plan", "/document/apply", "/admin/tokens"):
        assert stranger.post(path).status_code == 403, path
    assert stranger.get("/admin").status_code == 403
    assert service.get("shop").desired == "running"
    log_in(stranger, service, "operate")
    assert stranger.post("/pipeline/shop/pause").status_code == 303
    assert stranger.post("/pipeline/shop/delete").status_code == 403
    log_in(stranger, service, "admin")
    assert stranger.post("/pipeline/shop/delete").status_code == 303
    assert stranger.get("/pipeline/shop").status_code == 404
    assert [each.actor for each in service.audit.list()][:2] == ["admin", "test"]


def test_pages_of_other_sites_can_do_nothing(browser: httpx.Client, service: Recorded) -> None:
    answer = browser.post("/pipeline/shop/stop", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403 and service.get("shop").desired == "running"
    policy = browser.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy


def test_a_plan_that_is_outdated_changes_nothing(browser: httpx.Client, service: Recorded) -> None:
    page = browser.post("/document/plan", data={"document": "{metadata: {name: x}}"})
    assert page.status_code == 400 and "spec" in page.text
    answer = browser.post("/document/apply", data={"document": str(document("shop", team="b")), "plan": "0" * 64})
    assert answer.status_code == 409 and "look at the plan of now" in answer.text
    assert service.get("shop").version == 1


def test_a_new_token_is_shown_once(browser: httpx.Client, service: Recorded) -> None:
    answer = browser.post("/admin/tokens", data={"name": "dashboards", "scope": "view", "days": "30"})
    (token,) = service.tokens.list()
    assert token.name == "dashboards" and not token.sees_values
    assert f"tailrace_{token.id}_" in answer.text
    assert f"tailrace_{token.id}_" not in browser.get("/admin").text
    browser.post(f"/admin/tokens/{token.id}/revoke")
    assert service.tokens.list()[0].revoked_us is not None
    assert "revoked" in browser.get("/admin").text
