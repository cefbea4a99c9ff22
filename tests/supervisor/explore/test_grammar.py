"""The language of conditions: what it says, what it refuses and where, and that nothing else gets through."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.change import PROCESSED
from tailrace.errors import ConfigError
from tailrace.supervisor.explore.grammar import DEEPEST, LONGEST, MOST_TESTS, And, Ask, Not, Or, parse
from tailrace.supervisor.explore.where import Where

TOTAL = Ask("after", ("total",), "gt", Decimal(100))
PAID = Ask("after", ("status",), "eq", "paid")


def test_what_it_says() -> None:
    assert parse("after.total > 100 and after.status = 'paid'") == And((TOTAL, PAID))
    assert parse("  AFTER.total>100  OR NOT (after.status='paid') ") == Or((TOTAL, Not(PAID)))
    assert parse("after.total > 100 or after.status = 'paid' and after.total > 100") == Or((TOTAL, And((PAID, TOTAL))))
    assert parse("not after.total > 100 and after.status == 'paid'") == And((Not(TOTAL), PAID))
    assert parse("""before."net €".x != 'it''s'""") == Ask("before", ("net €", "x"), "ne", "it's")
    assert parse("key.id in (1, -2.50, 'a', true)") == Ask(
        "key", ("id",), "in", (Decimal(1), Decimal("-2.50"), "a", True)
    )
    assert parse("key.id not in (1)") == Ask("key", ("id",), "not_in", (Decimal(1),))
    assert parse("after.x is null") == Ask("after", ("x",), "not_exists")
    assert parse("after.x is not null") == Ask("after", ("x",), "exists")
    assert parse("after.x contains 'a'") == Ask("after", ("x",), "contains", "a")
    assert parse("after.x matches '^a+$'") == Ask("after", ("x",), "regex", "^a+$")
    assert parse("after.and.in = false") == Ask("after", ("and", "in"), "eq", False)


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", 1, "a path such as `after.total` was expected, and the end was found"),
        ("total > 1", 1, "a path such as `after.total` was expected, and `total` was found"),
        ("after > 1", 7, "`.` and a column was expected"),
        ("after.total >", 14, "a value was expected, and the end was found"),
        ("after.total > paid", 15, "a value was expected, and `paid` was found"),
        ("after.total > null", 15, "a value was expected"),
        ("after.total ! 1", 13, "`! 1` is not understood"),
        ("after.total = 'paid", 15, "`'paid` is not understood"),
        ("after.total = 1 after", 17, "the end, `and` or `or` was expected"),
        ("(after.total = 1", 17, "`)` was expected"),
        ("after.total in 1", 16, "`(` was expected"),
        ("after.total in ()", 17, "a value was expected"),
        ("after.total between 1 and 2", 13, "`in`, `not in`"),
        ("after.x matches '('", 1, "the pattern cannot be compiled"),
        ("after.x matches 5", 1, "`regex` needs a text"),
        ("after.x > true", 1, "`gt` needs a number or a text"),
        ("__import__('os').system('x')", 1, "a path such as"),
        ("after.x = 1; drop table x", 12, "`; drop tab` is not understood"),
        ("not " * (DEEPEST + 2) + "after.x = 1", 4 * DEEPEST + 5, "nested more than"),
        ("(" * 3000, 1, f"and {LONGEST} are the most"),
        (" or ".join(["after.x=1"] * (MOST_TESTS + 1)), 13 * MOST_TESTS + 1, "more than"),
    ],
)
def test_what_it_refuses_and_where(text: str, place: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.where) == ("explore.filter", f"character {place}")
    assert what in caught.value.message
    assert caught.value.hint


def test_nothing_but_a_refusal_comes_of_any_text() -> None:
    """Words and signs of the language in any order are read, or refused with a place in the text."""
    chance = random.Random(15)
    pieces = [
        "after",
        ".",
        "x",
        "=",
        ">",
        "'a'",
        "1",
        "(",
        ")",
        "and",
        "or",
        "not",
        "in",
        ",",
        "is",
        "null",
        '"',
        "'",
        "%",
    ]
    read = 0
    for _ in range(3_000):
        text = " ".join(chance.choices(pieces, k=chance.randint(1, 12)))
        try:
            parse(text)
            read += 1
        except ConfigError as error:
            assert error.code == "explore.filter"
            assert 1 <= int(error.where.removeprefix("character ")) <= len(text) + 1, text
    for text in ("after.x = 1", "not (after.x = 'a' or after.x is null)"):
        parse(text)
    assert read < 3_000


ROWS: list[dict[str, Any] | None] = [
    {"id": 1, "total": "150.00", "status": "paid", "n": 12345678901234567890, "tags": ["a", "b"], "at": {"to": "Rome"}},
    {"id": 2, "total": "99.999", "status": None, "n": 12345678901234567891, "tags": [], "at": {"to": "Bonn"}},
    {"id": 3, "total": 100, "status": "sent"},
    None,
]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("after.total > 100", lambda row: row["total"] == "150.00"),
        ("after.total >= 100", lambda row: row["id"] in (1, 3)),
        ("after.n = 12345678901234567890", lambda row: row["id"] == 1),
        ("after.n != 12345678901234567890", lambda row: row["id"] == 2),
        ("after.status is null", lambda row: row["id"] == 2),
        ("after.status in ('paid', 'sent') and not after.id = 1", lambda row: row["id"] == 3),
        ("after.at.to = 'Rome' or after.id = 3", lambda row: row["id"] in (1, 3)),
        ("after.tags contains 'b'", lambda row: row["id"] == 1),
        ("after.at.to matches '^B'", lambda row: row["id"] == 2),
        ("not after.at.to = 'Rome'", lambda row: row["id"] in (2, 3)),
    ],
)
def test_it_is_asked_about_rows(text: str, fits: Callable[[dict[str, Any]], bool]) -> None:
    found = Where(parse(text)).fits(batch(ROWS))
    wanted = [(fits(row) if row is not None else text.startswith("not") or "is null" in text) for row in ROWS]
    assert found.tolist() == wanted


def test_nobody_knows_a_value_that_was_not_sent() -> None:
    rows = batch([{"id": 1}, {"id": 1, "big": "x"}], unchanged=[["big"], None])
    assert Where(parse("after.big = 'x'")).fits(rows).tolist() == [False, True]
    assert Where(parse("not after.big = 'x'")).fits(rows).tolist() == [False, False]
    assert Where(parse("after.big is null or after.id = 1")).fits(rows).tolist() == [True, True]


def batch(rows: list[dict[str, Any] | None], unchanged: list[Any] | None = None) -> pa.RecordBatch:
    unsent = unchanged or [None] * len(rows)
    images = [None if row is None else json.dumps(row) for row in rows]
    given = zip(images, unsent, strict=True)
    return pa.RecordBatch.from_pylist(
        [{"after": image, "unchanged": names} for image, names in given],
        schema=pa.schema([pa.field(each.name, each.type) for each in PROCESSED]),
    )
