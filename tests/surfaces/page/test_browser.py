"""The page in a real browser, over pipelines that do what the test says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect

from tailrace.control.tokens import Tokens
from tests.surfaces.page.browsing import LAPTOP, PHONE, Visitors, barriers, overflow, visitors
from tests.surfaces.page.listening import listening
from tests.surfaces.page.recorded import Recorded, document, reading, recorded, resting, running, unwell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)
PAGES = (
    "/",
    "/pipeline/shop",
    "/pipeline/away",
    "/pipeline/new",
    "/pipeline/off",
    "/pipeline/shop/document",
    "/pipeline/shop/document/2",
    "/pipeline/shop/edit",
    "/new",
    "/admin",
    "/api",
    "/login",
    "/pipeline/nobody",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitors]:
    with visitors() as made:
        yield made


@pytest.fixture(scope="module")
def populated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A pipeline in each state that has a look of its own."""
    with recorded(tmp_path_factory.mktemp("recorded")) as service:
        views = [running("shop"), unwell("away"), unwell("dead", "failed"), reading("new")]
        for view in [*views, resting("off", "stopped", "stopped"), resting("resting", "paused", "paused")]:
            service.apply(document(view.name, team="pay"), actor="anna")
            service.show(view)
        service.apply({**document("shop"), "metadata": {"name": "shop", "labels": {"team": "ware"}}}, actor="ben")
        yield service


@pytest.fixture(scope="module")
def address(populated: Recorded) -> Iterator[str]:
    with listening(populated) as made:
        yield made


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_any_page(
    browser: Visitors, address: str, scheme: Literal["light", "dark"]
) -> None:
    with browser.visit(address, scheme=scheme) as visit:
        tab = visit.tab()
        found = {}
        for path in PAGES:
            tab.goto(path)
            found[path] = barriers(tab)
        visit.troubles = [each for each in visit.troubles if "404" not in each]  # of the pipeline that is not there
    assert {path: told for path, told in found.items() if told} == {}


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_no_page_is_wider_than_its_window(browser: Visitors, address: str, size: tuple[int, int]) -> None:
    with browser.visit(address, size=size) as visit:
        tab = visit.tab()
        for path in PAGES[:-1]:
            tab.goto(path)
            assert overflow(tab) == 0, path


def test_figures_and_states_follow_without_a_reload(browser: Visitors, address: str, populated: Recorded) -> None:
    populated.show(running("shop", changes=1000))
    with browser.visit(address) as visit:
        tab = visit.tab()
        tab.goto("/")
        row = tab.locator("#p-shop")
        expect(tab.locator("#link")).to_have_text("live")
        expect(row.locator(".badge")).to_have_text("running")
        rate = row.locator(".rate")
        expect(rate).to_have_text("—")
        tab.locator("#q").focus()
        populated.show(running("shop", changes=3000, lag_rows=40, lag_s=7.0))
        expect(rate).to_have_text(re.compile(r"^[1-9][\d,.]*/s$"))
        expect(row).to_contain_text("7.0 s")
        expect(row.locator("svg[data-series='rate:shop'] polyline")).to_have_count(1)
        populated.show(unwell("shop"))
        expect(row.locator(".badge")).to_have_text("degraded")
        expect(row).to_contain_text("start the target")
        expect(tab.locator("#told")).to_contain_text("shop is degraded")
        expect(rate).to_have_text("—")
        expect(tab.locator("#q")).to_be_focused()
        assert [each.url for each in visit.requests].count(f"{address}/static/page.js") == 1
        populated.show(running("shop"))


def test_tabs_share_one_stream_that_another_resumes(browser: Visitors, address: str, populated: Recorded) -> None:
    with browser.visit(address) as visit:
        tabs = [visit.tab() for _ in range(7)]
        for tab in tabs:
            tab.goto("/pipeline/away")
            expect(tab.locator("#link")).to_have_text("live")
        assert len(visit.streams()) == 1
        last = populated.newest_event()
        populated.show(resting("away", "paused", "paused"))
        for tab in tabs:
            tab.bring_to_front()
            expect(tab.locator("#told")).to_contain_text("away is paused")
        assert populated.newest_event() == last + 1
        with visit.context.expect_event("request", lambda request: request.url.endswith("/v1/events")):
            tabs[0].close()
        assert [each.headers["last-event-id"] for each in visit.streams()][-1] == str(last + 1)
        populated.show(unwell("away"))
        expect(tabs[6].locator("#told")).to_contain_text("away is degraded")
        assert len(visit.streams()) == 2


def test_what_is_done_is_asked_first_and_shown_until_it_is_so(
    browser: Visitors, address: str, populated: Recorded
) -> None:
    with browser.visit(address) as visit:
        tab = visit.tab()
        tab.goto("/pipeline/shop")
        tab.get_by_role("button", name="Pause").click()
        expect(tab.get_by_role("dialog")).to_contain_text("Nothing more is delivered")
        tab.keyboard.press("Escape")
        expect(tab.get_by_role("dialog")).to_be_hidden()
        assert populated.get("shop").desired == "running"
        tab.get_by_role("button", name="Pause").click()
        tab.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(tab.locator("#pending")).to_contain_text("pausing…")
        assert populated.get("shop").desired == "paused"
        populated.show(resting("shop", "paused", "paused"))
        expect(tab.locator("#pending")).to_have_count(0)
        expect(tab.locator("main .badge").first).to_have_text("paused")
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator("#pending")).to_contain_text("resuming…")
        populated.show(running("shop"))
        expect(tab.locator("#pending")).to_have_count(0)


def test_a_document_is_edited_planned_and_applied(browser: Visitors, address: str, populated: Recorded) -> None:
    with browser.visit(address) as visit:
        tab = visit.tab()
        tab.goto("/pipeline/dead/edit")
        text = tab.get_by_label("The document, as YAML")
        written = text.input_value()
        assert "canary" not in written
        text.fill(written.replace("format: jsonl", "formt: jsonl"))
        tab.get_by_role("button", name="Plan").click()
        line = 1 + written[: written.index("format: jsonl")].count("\n")
        expect(tab.get_by_role("alert").first).to_contain_text(f"Line {line}")
        expect(tab.get_by_role("alert").first).to_contain_text("did you mean format?")
        expect(tab.get_by_label("The document, as YAML")).to_have_value(re.compile("formt: jsonl"))
        tab.get_by_label("The document, as YAML").fill(written.replace("team: pay", "team: ops"))
        tab.get_by_role("button", name="Plan").click()
        step = tab.get_by_role("row", name="metadata.labels.team")
        expect(step).to_contain_text("live")
        assert populated.get("dead").version == 1
        tab.get_by_role("button", name="Apply").click()
        expect(tab.locator("main")).to_contain_text("team=ops")
        assert populated.get("dead").version == 2
        visit.troubles = [each for each in visit.troubles if "400" not in each]  # the document that was refused


def test_when_the_server_goes_the_page_says_since_when(browser: Visitors, populated: Recorded) -> None:
    with browser.visit("", lost=True) as visit:
        tab = visit.tab()
        with listening(populated) as there:
            tab.goto(there)
            expect(tab.locator("#link")).to_have_text("live")
        expect(tab.locator("#stale")).to_contain_text("Stale since")
        expect(tab.locator("#link")).to_contain_text("stale since")
        expect(tab.locator("#p-away")).to_be_visible()
        with listening(populated, port=int(there.rpartition(":")[2])):
            expect(tab.locator("#stale")).to_be_hidden()
            expect(tab.locator("#link")).to_have_text("live")


def test_the_keyboard_is_enough(browser: Visitors, address: str) -> None:
    with browser.visit(address) as visit:
        tab = visit.tab()
        tab.goto("/")
        tab.keyboard.press("Tab")
        expect(tab.get_by_role("link", name="Skip to the content")).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.locator("main")).to_be_focused()
        tab.keyboard.press("/")
        expect(tab.locator("#q")).to_be_focused()
        tab.keyboard.type("away")
        tab.keyboard.press("Enter")
        expect(tab.locator("tbody")).to_have_count(1)
        tab.get_by_role("link", name="away").focus()
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("heading", name="away")).to_be_visible()


def test_a_token_becomes_a_cookie_that_scripts_do_not_see(browser: Visitors, populated: Recorded) -> None:
    _, clear = Tokens(populated.store).create("carla", "view", actor="test")
    with listening(populated, tokens_required=True) as there, browser.visit(there) as visit:
        tab = visit.tab()
        tab.goto("/pipeline/shop")
        expect(tab).to_have_url(re.compile("/login"))
        tab.get_by_label("Token").fill("tailrace_wrong_token")
        tab.get_by_role("button", name="Log in").click()
        expect(tab.get_by_role("alert").first).to_contain_text("not valid")
        tab.get_by_label("Token").fill(clear)
        tab.get_by_role("button", name="Log in").click()
        expect(tab.get_by_role("heading", name="shop")).to_be_visible()
        expect(tab.locator("#link")).to_have_text("live")
        expect(tab.get_by_role("button", name="Pause")).to_have_count(0)
        (cookie,) = visit.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert tab.evaluate("document.cookie") == ""
        tab.get_by_role("button", name="Log out").click()
        expect(tab).to_have_url(re.compile("/login"))
        assert visit.context.cookies() == []
        visit.troubles = [each for each in visit.troubles if "401" not in each]


def test_five_hundred_pipelines(browser: Visitors, tmp_path: Path) -> None:
    with recorded(tmp_path) as service:
        service.add_many(500)
        service.show(unwell("p400"))
        with listening(service) as there, browser.visit(there) as visit:
            tab = visit.tab()
            tab.goto("/")
            expect(tab.locator("tbody").first).to_contain_text("p400")
            expect(tab.locator("#state-running")).to_contain_text("499")
            service.show(unwell("p499", "failed"))
            expect(tab.locator("tbody").first).to_contain_text("p499")
            expect(tab.locator("tbody")).to_have_count(100)
