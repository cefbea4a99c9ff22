"""Which tables a pattern stands for."""

from __future__ import annotations

import pytest

from tailrace.capture.postgres.patterns import TablePatterns


@pytest.mark.parametrize(
    ("pattern", "schema", "table", "fits"),
    [
        ("public.orders", "public", "orders", True),
        ("public.orders", "public", "orders2", False),
        ("public.orders", "xpublic", "orders", False),
        ("public.*", "public", "orders", True),
        ("public.*", "private", "orders", False),
        ("*.orders", "any", "orders", True),
        ("public.order_*", "public", "order_items", True),
        ("public.order_*", "public", "orders", False),
        ("*", "any", "thing", True),
        ("orders", "any", "orders", True),
        ("orders", "any", "order", False),
        ("public.Orders", "public", "orders", False),
        ("public.a.b", "public", "a.b", True),
        ("public.a?", "public", "ab", False),
        ("public.a?", "public", "a?", True),
        ("public.[ab]", "public", "a", False),
        ("public.[ab]", "public", "[ab]", True),
        ("public.a+b", "public", "a+b", True),
        ("public.*", "public", "line\nbreak", True),
    ],
)
def test_patterns(pattern: str, schema: str, table: str, fits: bool) -> None:
    assert TablePatterns((pattern,)).match(schema, table) is fits


def test_patterns_that_match_nothing_are_named() -> None:
    patterns = TablePatterns(("public.*", "billing.*", "x"))
    assert patterns.unmatched([("public", "orders")]) == ["billing.*", "x"]
