"""A real browser that asks nobody but the server of a test, and in which nothing may go wrong unnoticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tailrace.testing.servers.chromium import FLAGS, axe, chromium

LAPTOP, PHONE = (1280, 800), (390, 844)
LOOPBACK = {"127.0.0.1", "localhost"}
LOST = "net::ERR_"
"""What the browser says of a server that is gone."""
PATIENCE_MS = 30_000


@dataclass
class Visit:
    """A visitor's tabs. `troubles` are requests to elsewhere, and what the browser complains of."""

    context: BrowserContext
    requests: list[Request] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def tab(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.troubles.append(f"{page.url}: {error}"))
        return page

    def streams(self) -> list[Request]:
        """The requests for events, of all tabs."""
        return [each for each in self.requests if urlsplit(each.url).path == "/v1/events"]

    def end(self, *, lost: bool = False) -> None:
        """Raise if something went wrong. `lost`: the server was away, of which the browser complains."""
        self.context.close()
        assert [each for each in self.troubles if not (lost and LOST in each)] == []

    def _requested(self, request: Request) -> None:
        self.requests.append(request)
        if urlsplit(request.url).hostname not in LOOPBACK:
            self.troubles.append(f"asked for {request.url}")

    def _told(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")


class Visitors:
    """Visits in one browser, which share nothing."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def visit(
        self,
        address: str,
        *,
        size: tuple[int, int] = LAPTOP,
        scheme: Literal["light", "dark"] = "light",
        lost: bool = False,
    ) -> Iterator[Visit]:
        context = self._browser.new_context(
            base_url=address or None, viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
        )
        made = Visit(context)
        context.on("request", made._requested)
        context.on("console", made._told)
        try:
            yield made
        except BaseException:
            context.close()
            raise
        made.end(lost=lost)


@contextmanager
def visitors() -> Iterator[Visitors]:
    found = chromium()
    environment: dict[str, str | float | bool] = {**os.environ, **found.environment}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.program, args=[*FLAGS], env=environment)
        try:
            yield Visitors(browser)
        finally:
            browser.close()


def barriers(page: Page) -> list[str]:
    """What keeps people from using the page, as axe finds it."""
    page.evaluate(axe())
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider
