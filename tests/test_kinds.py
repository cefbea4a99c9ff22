"""Kinds and their spellings."""

from __future__ import annotations

import pytest

from tailrace.kinds import NAMES, Kind
from tailrace.spellings import kind_of

TEXTS = [
    *(name for name in NAMES if name != "array"),
    "decimal(12,2)",
    "decimal(3,-2)",
    "array<text>",
    "array<decimal(38,0)>",
    "domain<int32>",
    "domain<array<text>>",
    "array<domain<decimal(10,2)>>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_kind_and_its_text(text: str) -> None:
    kind = Kind.parse(text)
    assert str(kind) == text
    assert repr(Kind.parse(str(kind))) == repr(kind)


@pytest.mark.parametrize("text", ["", "array", "array<>", "array<array>", "integer", "decimal(2)", "domain<>", "text "])
def test_nothing_else_is_a_kind(text: str) -> None:
    with pytest.raises(ValueError, match="there is no kind"):
        Kind.parse(text)


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("timestamp(3) with time zone", "timestamp_tz"),
        ("time(0) without time zone", "time"),
        ("interval day to second(3)", "interval"),
        ("interval(6)", "interval"),
        ("intervals", "domain<other>"),
        ("character varying(30)[]", "array<text>"),
        ("numeric(10,2)", "decimal(10,2)"),
        ("numeric", "decimal"),
        ("bit varying(7)", "other"),
        ("public.numeric(10,2)", "domain<other>"),
        ("mood[]", "array<domain<other>>"),
    ],
)
def test_spellings_of_postgresql(spelled: str, kind: str) -> None:
    assert str(kind_of(spelled)) == kind
