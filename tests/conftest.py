"""Real servers for every test: each is started once, when a test first asks for it, and shared from then on.

Tests share servers, so each makes its own database, topic, slot and publication names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tailrace.testing.servers import KafkaBroker, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[int], PostgresServer]]:
    """`postgres_server(major)`: the running PostgreSQL of that major version."""
    running: dict[int, PostgresServer] = {}
    with ExitStack() as servers:

        def of_major(major: int) -> PostgresServer:
            if major not in running:
                running[major] = servers.enter_context(PostgresServer(major))
            return running[major]

        yield of_major


@pytest.fixture(scope="session")
def postgres(postgres_server: Callable[[int], PostgresServer]) -> PostgresServer:
    return postgres_server(18)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker
