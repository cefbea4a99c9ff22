"""The language of `--where`: questions about the values of changes, and nothing else.

    after.total > 100 and (after.status in ('paid', 'sent') or not before.status is null)

    condition := test | not condition | condition and condition | condition or condition | ( condition )
    test      := path (= | != | < | <= | > | >=) value
               | path [not] in ( value, … ) | path contains value | path matches 'pattern' | path is [not] null
    path      := (after | before | key) . name . name …      a name that is not a plain word stands in double quotes
    value     := number | 'text' | true | false              a quote in a text is written twice

`not` binds closest, then `and`, then `or`. Words of the language may be in capitals. A text is read once, from left to
right, and what is not in this list is refused with its place: nothing is ever evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NoReturn

from pydantic import ValidationError

from tailrace.errors import ConfigError
from tailrace.processors.predicates import Operator, Predicate

LONGEST = 2_000
"""Characters of a condition, at most."""
DEEPEST = 20
"""Levels of parentheses and `not`, at most."""
MOST_TESTS = 50

Value = bool | Decimal | str
Image = Literal["key", "before", "after"]
IMAGES: tuple[Image, ...] = ("key", "before", "after")
_WORDS = frozenset({"and", "or", "not", "in", "contains", "matches", "is", "null", "true", "false"})
_COMPARISONS: dict[str, Operator] = {
    **{"=": "eq", "==": "eq", "!=": "ne", "<>": "ne"},
    **{"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"},
}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<quoted>(?:[^"]|"")+)"
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|!=|<>|==|[=<>(),.])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Ask:
    """A question about the value at a path of an image."""

    image: Image
    path: tuple[str, ...]
    op: Operator
    value: Value | tuple[Value, ...] | None = None


@dataclass(frozen=True)
class Not:
    inner: Condition


@dataclass(frozen=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Condition, ...]


Condition = Ask | Not | And | Or


def parse(text: str) -> Condition:
    """Raises `explore.filter`, with the place in the text."""
    if len(text) > LONGEST:
        _refuse(f"it has {len(text)} characters, and {LONGEST} are the most", 0, "ask for less at once")
    return _Parser(text).whole()


def tests(condition: Condition) -> Iterator[Ask]:
    """Every test in it."""
    match condition:
        case Ask():
            yield condition
        case Not(inner):
            yield from tests(inner)
        case And(parts) | Or(parts):
            for each in parts:
                yield from tests(each)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens, self._next, self._tests = list(_tokens(text)), 0, 0

    def whole(self) -> Condition:
        found = self._or(0)
        if self._now.kind != "end":
            _unexpected(self._now, "the end, `and` or `or`")
        return found

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._now
        self._next += token.kind != "end"
        return token

    def _or(self, depth: int) -> Condition:
        parts = [self._and(depth)]
        while self._now.is_word("or"):
            self._take()
            parts.append(self._and(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self, depth: int) -> Condition:
        parts = [self._not(depth)]
        while self._now.is_word("and"):
            self._take()
            parts.append(self._not(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _not(self, depth: int) -> Condition:
        if depth > DEEPEST:
            _refuse(f"it is nested more than {DEEPEST} levels deep", self._now.at, "ask for less at once")
        if self._now.is_word("not"):
            self._take()
            return Not(self._not(depth + 1))
        if self._now.is_sign("("):
            self._take()
            found = self._or(depth + 1)
            self._expect(")")
            return found
        return self._test()

    def _test(self) -> Condition:
        first = self._now
        self._tests += 1
        if self._tests > MOST_TESTS:
            _refuse(f"it has more than {MOST_TESTS} tests", first.at, "ask for less at once")
        image, path = self._path()
        return self._asked(image, path, first)

    def _path(self) -> tuple[Image, tuple[str, ...]]:
        image = next((each for each in IMAGES if self._now.is_word(each)), None)
        if image is None:
            _unexpected(self._now, "a path such as `after.total`")
        self._take()
        names: list[str] = []
        while self._now.is_sign("."):
            self._take()
            if self._now.kind not in ("word", "quoted"):
                _unexpected(
                    self._now, "a name", 'a name that is not a plain word stands in double quotes: after."net €"'
                )
            name = self._take()
            names.append(name.text.replace('""', '"') if name.kind == "quoted" else name.text)
        if not names:
            _unexpected(self._now, "`.` and a column", f"ask about a column: {image}.NAME")
        return image, tuple(names)

    def _asked(self, image: Image, path: tuple[str, ...], first: _Token) -> Condition:
        token = self._take_operator()
        if token.kind == "sign":
            return _checked(Ask(image, path, _COMPARISONS[token.text], self._value()), first)
        negated = False
        if token.is_word("not"):
            negated, token = True, self._expect_word("in")
        if token.is_word("in"):
            return _checked(Ask(image, path, "not_in" if negated else "in", self._values()), first)
        if token.is_word("is"):
            negated = self._now.is_word("not") and bool(self._take())
            self._expect_word("null")
            return Ask(image, path, "exists" if negated else "not_exists")
        op: Operator = "contains" if token.is_word("contains") else "regex"
        return _checked(Ask(image, path, op, self._value()), first)

    def _take_operator(self) -> _Token:
        if not (self._now.is_sign(*_COMPARISONS) or self._now.is_word("in", "not", "is", "contains", "matches")):
            known = "`=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, `contains`, `matches` or `is`"
            _unexpected(self._now, known)
        return self._take()

    def _values(self) -> tuple[Value, ...]:
        self._expect("(")
        found = [self._value()]
        while self._now.is_sign(","):
            self._take()
            found.append(self._value())
        self._expect(")")
        return tuple(found)

    def _value(self) -> Value:
        token = self._now
        if token.kind == "text":
            self._take()
            return token.text.replace("''", "'")
        if token.kind == "number":
            self._take()
            return Decimal(token.text)
        if token.is_word("true", "false"):
            self._take()
            return token.text.lower() == "true"
        if token.is_word("null"):
            _unexpected(token, "a value", "write `is null` or `is not null`")
        _unexpected(token, "a value", "a text stands in single quotes: 'paid'")

    def _expect(self, sign: str) -> None:
        if not self._now.is_sign(sign):
            _unexpected(self._now, f"`{sign}`")
        self._take()

    def _expect_word(self, word: str) -> _Token:
        if not self._now.is_word(word):
            _unexpected(self._now, f"`{word}`")
        return self._take()


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at, end)
        if found is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            hint = (
                "a text ends with the quote that it begins with"
                if text[start] in "'\""
                else "see docs/guides/explore.md"
            )
            _refuse(f"`{text[start : start + 10]}` is not understood", start, hint)
        kind = str(found.lastgroup)
        yield _Token(kind, found.group(kind), found.start(kind) - (kind in ("text", "quoted")))
        at = found.end()
    yield _Token("end", "", end)


def _checked(test: Ask, first: _Token) -> Ask:
    """The test, if its value is one that its operator compares with."""
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    plain = tuple(float(each) if isinstance(each, Decimal) else each for each in values)
    value = plain if isinstance(test.value, tuple) else plain[0]
    try:
        Predicate.model_validate({"path": ".".join(test.path), "op": test.op, "value": value})
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        _refuse(str(context.get("message", "the value does not fit")), first.at, str(context.get("hint", "")))
    return test


def _unexpected(token: _Token, wanted: str, hint: str = "") -> NoReturn:
    met = "the end" if token.kind == "end" else f"`{token.text}`"
    _refuse(f"{wanted} was expected, and {met} was found", token.at, hint or "see docs/guides/explore.md")


def _refuse(message: str, at: int, hint: str) -> NoReturn:
    raise ConfigError(
        "explore.filter", f"the condition cannot be read: {message}", hint=hint, where=f"character {at + 1}"
    )
