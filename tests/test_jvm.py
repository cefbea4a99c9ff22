from __future__ import annotations

import pytest

from tailrace.jvm import reason

STORY = """An error occurred while calling o746.sql.
: org.example.UncheckedSQLException: Failed to connect: jdbc:postgresql://me:hush@host/db
\tat org.example.Jdbc.execute(Jdbc.java:10)
Caused by: org.example.Middle: in between
\tat org.example.Middle.run(Middle.java:1)
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.connect0(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            STORY,
            "org.example.UncheckedSQLException: Failed to connect: jdbc:postgresql://me:***@host/db "
            "(java.net.ConnectException: Connection refused)",
        ),
        ("[TABLE_NOT_FOUND] no such table\n== SQL ==\nselect", "[TABLE_NOT_FOUND] no such table"),
        ("\n  \n", "RuntimeError"),
    ],
)
def test_the_reason_of_a_failure(text: str, told: str) -> None:
    assert reason(RuntimeError(text)) == told
