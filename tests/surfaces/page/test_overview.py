"""What the server writes: the worst first, reasons and ways out, and a dash for what is not known."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx

from tests.surfaces.page.recorded import PASSWORD, Recorded, document, reading, resting, running, unwell

ROW = re.compile(r'<tbody role="rowgroup" id="p-(?P<name>[^"]+)".*?</tbody>', re.DOTALL)


def rows(html: str) -> dict[str, str]:
    return {found["name"]: found[0] for found in ROW.finditer(html)}


def test_without_pipelines_it_says_how_to_begin(browser: httpx.Client) -> None:
    answer = browser.get("/")
    assert answer.status_code == 200
    assert "No pipelines yet" in answer.text and "tailrace apply" in answer.text


def test_the_worst_come_first(browser: httpx.Client, service: Recorded) -> None:
    views = [
        running("idle"),
        running("busy", lag_rows=90, lag_s=12.0),
        unwell("away"),
        unwell("dead", "failed"),
        reading("new"),
        resting("off", "stopped", "stopped"),
    ]
    for view in views:
        service.apply(document(view.name), actor="a")
        service.show(view)
    assert list(rows(browser.get("/").text)) == ["dead", "away", "new", "busy", "idle", "off"]


def test_a_degraded_one_says_why_and_the_way_out(browser: httpx.Client, service: Recorded) -> None:
    service.apply(document("shop"), actor="a")
    service.show(unwell("shop"))
    row = rows(browser.get("/").text)["shop"]
    assert "connection refused at localhost:9" in row and "sink.unavailable" in row
    assert "start the target, or correct <code>url</code>" in row
    assert "the slot holds 3 GiB: the disk fills" in row
    assert "1 min 23 s" in row and "500 wait" in row and "1 h 30 min" in row


def test_what_is_not_known_is_no_number(browser: httpx.Client, service: Recorded) -> None:
    """Not for a person, and not for the lines that the browser draws."""
    service.apply(document("shop"), actor="a")
    service.show(resting("shop", "paused", "paused"))
    row = rows(browser.get("/").text)["shop"]
    assert row.count("not known") == 4
    assert "data-total" not in row and "data-value" not in row
    service.show(running("shop"))
    row = rows(browser.get("/").text)["shop"]
    assert 'data-total="1200"' in row and 'data-value="0.1"' in row


def test_it_finds_names_labels_and_states(browser: httpx.Client, service: Recorded) -> None:
    for name, team in (("shop", "pay"), ("stock", "ware")):
        service.apply(document(name, team=team), actor="a")
    service.show(running("shop"))
    service.show(unwell("stock"))
    assert list(rows(browser.get("/?q=SHO").text)) == ["shop"]
    assert list(rows(browser.get("/?q=team=ware").text)) == ["stock"]
    assert list(rows(browser.get("/?state=running").text)) == ["shop"]
    assert "No pipeline fits" in browser.get("/?q=nothing").text


def test_of_very_many_the_first_hundred_are_shown(browser: httpx.Client, service: Recorded) -> None:
    service.add_many(130)
    service.show(unwell("p129"))
    html = browser.get("/").text
    assert len(rows(html)) == 100 and next(iter(rows(html))) == "p129"
    assert "30 more" in html
    assert len(rows(browser.get("/?most=200").text)) == 130


def test_what_was_asked_for_is_shown_until_it_is_so(browser: httpx.Client, service: Recorded) -> None:
    service.apply(document("shop"), actor="a")
    service.show(running("shop"))
    service.pause("shop", actor="a")
    assert "pausing…" in rows(browser.get("/").text)["shop"]
    service.show(resting("shop", "paused", "paused"))
    assert "pausing…" not in rows(browser.get("/").text)["shop"]


def test_names_and_texts_are_escaped_and_secrets_blanked(browser: httpx.Client, service: Recorded) -> None:
    service.apply(document("shop", team="<script>alert(1)</script>"), actor="<b>eve</b>")
    service.show(unwell("shop"))
    for path in ("/", "/pipeline/shop", "/pipeline/shop/document", "/pipeline/shop/document/1", "/pipeline/shop/edit"):
        html = browser.get(path).text
        assert "<script>alert" not in html and "<b>eve" not in html, path
        assert PASSWORD not in html, path


def test_nobody_knows_how_far_behind_a_source_that_is_away_is(browser: httpx.Client, service: Recorded) -> None:
    """Its log has been delivered, and what waits in the database cannot be told."""
    service.apply(document("shop"), actor="a")
    view = running("shop")
    assert view.tap is not None
    service.show(replace(view, tap=replace(view.tap, state="waiting")))
    assert 'data-series="lag:shop"></svg>' in rows(browser.get("/").text)["shop"]


def test_a_pipeline_that_nobody_has_looked_at_yet_has_pages(browser: httpx.Client, service: Recorded) -> None:
    service.apply(document("shop"), actor="a")
    assert "created" in rows(browser.get("/").text)["shop"]
    html = browser.get("/pipeline/shop").text
    assert "None of them runs." in html and "resuming…" in html
