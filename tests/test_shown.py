"""What is shown of a document, and what comes back."""

from __future__ import annotations

import json
from typing import Any

from tailrace.config.shown import masked, restored, shown
from tailrace.spec import Pipeline

CANARY = "c4n4ry"
DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "shop"},
    "spec": {
        "source": {
            "type": "postgres",
            "config": {"id": "shop", "dsn": f"postgresql://me:{CANARY}@host/db", "tables": ["public.t"]},
        },
        "sinks": [
            {
                "type": "http",
                "config": {
                    "id": "a",
                    "url": "http://host/${source.table}",
                    "headers": {"X-Key": CANARY, "X-B": "${B}"},
                },
            },
            {
                "type": "kafka",
                "config": {"id": "k", "brokers": "b", "topic": "t", "client_conf": {"sasl.password": CANARY}},
            },
        ],
    },
}


def test_no_secret_is_shown_and_references_are() -> None:
    told = shown(DOCUMENT, Pipeline)
    assert CANARY not in json.dumps(told)
    assert told["spec"]["source"]["config"]["dsn"] == "postgresql://me:***@host/db"
    headers = told["spec"]["sinks"][0]["config"]["headers"]
    assert headers == {"X-Key": "***", "X-B": "${B}"}
    assert told["metadata"] == DOCUMENT["metadata"]


def test_what_was_shown_and_sent_back_is_unchanged() -> None:
    assert restored(shown(DOCUMENT, Pipeline), DOCUMENT, Pipeline) == DOCUMENT


def test_a_secret_follows_its_sink_to_another_place() -> None:
    sent = shown(DOCUMENT, Pipeline)
    sent["spec"]["sinks"].reverse()
    found = restored(sent, DOCUMENT, Pipeline)
    assert found["spec"]["sinks"] == list(reversed(DOCUMENT["spec"]["sinks"]))


def test_a_mask_with_nothing_behind_it_is_found() -> None:
    sent = shown(DOCUMENT, Pipeline)
    sent["spec"]["sinks"][0]["config"]["id"] = "new"
    found = restored(sent, DOCUMENT, Pipeline)
    config = ("spec", "sinks", 0, "config")
    assert masked(found, Pipeline) == [(*config, "url"), (*config, "headers", "X-Key")]


def test_a_text_of_stars_is_a_text() -> None:
    steps = [{"type": "transform", "mask": {"columns": ["a"], "with": "***"}}]
    assert masked({"spec": {"processors": steps}}, Pipeline) == []
