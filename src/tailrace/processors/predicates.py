"""One question about one value of a change: what `fields` of a filter, and of a condition, are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model
from tailrace.processors.texts import (
    ARRAY,
    FALSE,
    NULL,
    STRING,
    TRUE,
    Number,
    compared,
    decoded,
    elements,
    kinds,
)

Scalar = bool | int | float | str
Operator = Literal[
    "eq",
    "ne",
    "gt",
    "gte",
    "lt",
    "lte",
    "in",
    "not_in",
    "exists",
    "not_exists",
    "contains",
    "regex",
    "changed",
]
_ORDERS: dict[str, tuple[int, ...]] = {"gt": (1,), "gte": (0, 1), "lt": (-1,), "lte": (-1, 0)}
_TEXT_ORDERS = {"gt": pc.greater, "gte": pc.greater_equal, "lt": pc.less, "lte": pc.less_equal}


class Predicate(Model):
    """A question about a column, or about a member of a JSON column.

    A value that is missing or NULL answers `eq`, `ne`, the orders, `in`, `contains` and `regex` with no, `not_in` and
    `not_exists` with yes. Numbers compare as numbers, with every digit, decimals too; texts character by character.
    """

    path: Annotated[
        str,
        Field(
            min_length=1, description="A column; dots lead into JSON columns.", examples=["total", "address.country"]
        ),
    ]
    op: Annotated[
        Operator,
        Field(
            description="The question. `contains`: a part of a text, or an element of a list; `regex`: RE2 syntax, "
            "anywhere in a text; `changed`: `before` and `after` differ, or one of them is not known."
        ),
    ]
    value: Annotated[
        Scalar | tuple[Scalar, ...] | None,
        Field(
            description="What to compare with: a number, a text, true or false; a list for `in` and `not_in`; nothing "
            "for `exists`, `not_exists` and `changed`. A number in quotes is a number for columns of numbers.",
            examples=[100, ["new", "paid"]],
        ),
    ] = None

    @model_validator(mode="after")
    def _has_its_value(self) -> Predicate:
        fault = _fault(self.op, self.value)
        if fault:
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": fault[0], "hint": fault[1]})
        return self


def _fault(op: str, value: object) -> tuple[str, str] | None:
    """What is wrong with the value of a predicate, and what to do."""
    if op in ("exists", "not_exists", "changed"):
        return None if value is None else (f"`{op}` compares with nothing", "leave `value` out")
    if op in ("in", "not_in"):
        return None if isinstance(value, tuple) and value else (f"`{op}` needs a list", "write `value: [1, 2]`")
    if value is None:
        return f"`{op}` needs a `value`", "add one; for NULL use `op: not_exists`"
    if isinstance(value, tuple):
        return f"`{op}` compares with one value", "use `in` for a list"
    if op in _ORDERS and isinstance(value, bool):
        return f"`{op}` needs a number or a text", "use `eq` for true and false"
    return _regex_fault(value) if op == "regex" else None


def _regex_fault(value: object) -> tuple[str, str] | None:
    if not isinstance(value, str):
        return "`regex` needs a text", "write the pattern in quotes"
    try:
        pc.match_substring_regex(pa.array([""]), value)
    except pa.ArrowInvalid as error:
        return f"the pattern cannot be compiled: {error}", "see the syntax of RE2: it has no look-around"
    return None


@dataclass(frozen=True)
class Values:
    """Values to ask about, as spans of bytes. `numeric`: which of them are of columns of numbers (None: no one)."""

    text: Any
    starts: Any
    ends: Any
    numeric: Any = None

    @cached_property
    def kinds(self) -> Any:
        return kinds(self.text, self.starts)

    @cached_property
    def strings(self) -> pa.Array[Any]:
        """Those that are strings, as they read."""
        return decoded(self.text, np.where(self.kinds == STRING, self.starts, -1), self.ends)

    def are_there(self) -> Any:
        return self.kinds > NULL


Test = Callable[[Values], Any]
"""Which of these values answer the question with yes."""


def test_of(op: str, value: Any) -> Test:
    """The question, ready to be asked; `changed` is none about one value."""
    match op:
        case "eq":
            return _equals(value)
        case "ne":
            equals = _equals(value)
            return lambda values: values.are_there() & ~equals(values)
        case "in":
            return _any_of(value)
        case "not_in":
            is_one = _any_of(value)
            return lambda values: ~is_one(values)
        case "exists":
            return Values.are_there
        case "not_exists":
            return lambda values: ~values.are_there()
        case "contains":
            return _contains(value)
        case "regex":
            return lambda values: _yes(pc.match_substring_regex(values.strings, value))
        case _:
            return _in_order(op, value)


def _equals(value: Scalar) -> Test:
    if isinstance(value, bool):
        return lambda values: values.kinds == (TRUE if value else FALSE)
    number = Number.parse(value)
    if isinstance(value, str):
        return _by_kind(number, (0,), lambda values: _yes(pc.equal(values.strings, pa.scalar(value))))
    assert number is not None
    return lambda values: _compares(values, number, (0,))


def _in_order(op: str, value: Any) -> Test:
    """`gt`, `gte`, `lt` or `lte`."""
    number, orders, of_texts = Number.parse(value), _ORDERS[op], _TEXT_ORDERS[op]
    if isinstance(value, str):
        return _by_kind(number, orders, lambda values: _yes(of_texts(values.strings, pa.scalar(value))))
    assert number is not None
    return lambda values: _compares(values, number, orders)


def _by_kind(number: Number | None, orders: tuple[int, ...], of_texts: Test) -> Test:
    """A number in quotes is a number for columns of numbers, and a text for all others."""

    def test(values: Values) -> Any:
        found = of_texts(values)
        if number is None or values.numeric is None:
            return found
        return np.where(values.numeric, _compares(values, number, orders), found)

    return test


def _any_of(choices: tuple[Scalar, ...]) -> Test:
    tests = [_equals(each) for each in choices]
    return lambda values: np.logical_or.reduce([test(values) for test in tests])


def _contains(value: Scalar) -> Test:
    equals = _equals(value)

    def test(values: Values) -> Any:
        found = np.zeros(len(values.starts), dtype=np.bool_)
        if isinstance(value, str):
            found |= _yes(pc.match_substring(values.strings, value))
        if (values.kinds == ARRAY).any():
            owners, starts, ends = elements(values.text, values.starts, values.ends)
            found[owners[equals(Values(values.text, starts, ends))]] = True
        return found

    return test


def _compares(values: Values, number: Number, orders: tuple[int, ...]) -> Any:
    return np.isin(compared(values.text, values.starts, values.ends, number), orders)


def _yes(answers: Any) -> Any:
    return np.asarray(answers.fill_null(False))
