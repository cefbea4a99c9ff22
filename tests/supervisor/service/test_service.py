"""What the service wishes of the reconciler, as documents and desired states change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.spec import Platform
from tailrace.supervisor.service import Service

SOURCE = {"id": "shop", "dsn": "${DSN}", "tables": ["public.*"]}
DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "shop"},
    "spec": {
        "source": {"type": "postgres", "config": SOURCE},
        "sinks": [{"type": "console", "config": {"id": "screen"}}],
    },
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(Platform(data_dir=tmp_path), {"DSN": "postgresql://127.0.0.1:1/db"})
    made.apply(DOCUMENT, actor="test")
    yield made
    made.close()


def generation(service: Service) -> tuple[int, int]:
    [wish] = service._wishes()
    return wish.generation


def test_what_is_live_restarts_nothing(service: Service) -> None:
    before = generation(service)
    labelled = service.patch("shop", {"metadata": {"labels": {"team": "pay"}}}, actor="test")
    assert (labelled.version, generation(service)) == (2, before)
    service.patch("shop", {"metadata": {"labels": None}, "apiVersion": "tailrace/v1"}, actor="test")
    assert generation(service) == before


def test_what_is_not_live_restarts(service: Service) -> None:
    before = generation(service)
    service.patch("shop", {"spec": {"batch": {"max_events": 7}}}, actor="test")
    changed = generation(service)
    assert changed > before
    service.patch("shop", {"metadata": {"tenant": "acme"}}, actor="test")
    assert generation(service) > changed, "records have the tenant in them"


def test_a_document_that_cannot_be_used_any_more_is_told(tmp_path: Path) -> None:
    first = Service(Platform(data_dir=tmp_path), {"DSN": "postgresql://127.0.0.1:1/db"})
    first.apply(DOCUMENT, actor="test")
    first.close()
    later = Service(Platform(data_dir=tmp_path), {})
    try:
        [wish] = later._wishes()
        assert wish.pipeline is None
        assert wish.error is not None
        assert (wish.error.code, "DSN" in wish.error.message) == ("config.missing_variable", True)
    finally:
        later.close()
