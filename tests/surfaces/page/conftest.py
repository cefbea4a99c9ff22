"""The page over a service whose pipelines do what a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.surfaces.page.listening import listening
from tests.surfaces.page.recorded import Recorded, recorded


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Recorded]:
    with recorded(tmp_path) as made:
        yield made


@pytest.fixture
def browser(service: Recorded) -> Iterator[httpx.Client]:
    """Whoever reaches the loopback interface."""
    with listening(service) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture
def stranger(service: Recorded) -> Iterator[httpx.Client]:
    """Of a server that wants tokens."""
    with listening(service, tokens_required=True) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client
