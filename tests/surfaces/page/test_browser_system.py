"""A pipeline's life as somebody sees it who looks at the page: made there, broken, mended, its server killed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from playwright.sync_api import Page, expect

from tailrace.testing.servers import HttpEndpoint, PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.surfaces.page.browsing import PHONE, Visitors, overflow, visitors
from tests.test_serve_system import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
expect.set_options(timeout=120_000)
ROWS = 200


@pytest.fixture(scope="module")
def served(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Database(postgres) as db:
        db.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
        made = Served(db, tmp_path_factory.mktemp("page"))
        made.sell(ROWS)
        made.start()
        try:
            yield made
        finally:
            kill(made)


@pytest.fixture(scope="module")
def hook() -> Iterator[HttpEndpoint]:
    with HttpEndpoint() as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitors]:
    with visitors() as made:
        yield made


def test_a_pipeline_is_made_watched_broken_mended_and_outlives_its_server(
    browser: Visitors, served: Served, hook: HttpEndpoint
) -> None:
    address = f"http://127.0.0.1:{served.port}"
    with browser.visit(address, lost=True) as visit:
        tab = visit.tab()
        tab.goto("/")
        tab.get_by_role("link", name="New pipeline").first.click()
        tab.get_by_label("The document, as YAML").fill(document(hook.url))
        tab.get_by_role("button", name="Plan").click()
        expect(tab.locator("main")).to_contain_text("A new pipeline")
        tab.get_by_role("button", name="Apply").click()
        state = tab.locator("main .badge").first
        expect(state).to_have_text("running")
        expect(tab.locator("#tables")).to_contain_text("public.items")
        eventually(lambda: delivered(hook) >= set(range(1, ROWS + 1)), 60, what=served.output)

        hook.stop()
        served.db.run(f"INSERT INTO items SELECT n, 'late' FROM generate_series({ROWS + 1}, {ROWS + 50}) n")
        expect(state).to_have_text("degraded")
        matter = tab.locator("#matters")
        expect(matter).to_contain_text("sink:hook")
        expect(matter).to_contain_text("sink.unavailable")
        expect(matter.locator(".way-out").first).not_to_be_empty()
        expect(tab.locator("#steps")).to_contain_text("sink.unavailable")

        hook.start()
        expect(state).to_have_text("running")
        expect(matter).to_have_count(0)
        eventually(lambda: delivered(hook) >= set(range(1, ROWS + 51)), 60, what=served.output)

        kill(served)
        expect(tab.locator("#stale")).to_contain_text("Stale since")
        expect(state).to_be_visible()
        served.start()
        expect(tab.locator("#stale")).to_be_hidden()
        expect(state).to_have_text("running")
        expect(tab.locator("#link")).to_have_text("live")
        on_a_phone(tab)


def on_a_phone(tab: Page) -> None:
    tab.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert overflow(tab) == 0
    expect(tab.locator("svg.flow.down")).to_be_visible()
    expect(tab.locator("svg.flow.across")).to_be_hidden()


def document(url: str) -> str:
    source = {"id": "shop", "dsn": "${SHOP}", "tables": ["public.*"], "snapshot": {"chunk_size": 50}}
    spec = {
        "source": {"type": "postgres", "config": source},
        "sinks": [{"type": "http", "config": {"id": "hook", "url": f"{url}/in", "envelope": {"type": "native"}}}],
    }
    return yaml.safe_dump({"metadata": {"name": "shop"}, "spec": spec})


def delivered(hook: HttpEndpoint) -> set[int]:
    """The keys of the rows that were accepted."""
    bodies = (json.loads(each.body) for each in hook.requests("/in") if each.status == 200)
    changes = (each for body in bodies for each in (body if isinstance(body, list) else [body]))
    return {each["after"]["id"] for each in changes if each.get("after")}


def kill(served: Served) -> None:
    """Its processes, all at once, as after a loss of power."""
    for each in served.family() if served.process and served.process.poll() is None else []:
        each.kill()
    if served.process is not None:
        served.process.wait()
