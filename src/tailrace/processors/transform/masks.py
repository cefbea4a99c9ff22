"""Values made unreadable: masked, so that nothing can be found in them, or hashed, so that equal ones stay equal."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Secret
from tailrace.kinds import Kind
from tailrace.processors.tables import Tables
from tailrace.processors.texts import ARRAY, NULL, OBJECT, decoded, kinds, quoted

HIDDEN = "***"

Columns = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1, description="Columns; dots lead into JSON columns.", examples=[["email", "address.street"]]),
]

Change = Callable[[Any, Any, Any], Any]
"""From values (bytes, starts, ends) to the JSON texts that stand there instead; null: a value that stays."""


class Mask(Model):
    """Hides the values of columns, wherever they are: in the key, in `before` and `after`, in the headers of a key
    change. A NULL stays NULL. Objects and lists are hidden whole, except by `fixed`."""

    columns: Columns
    tables: Tables = ()
    how: Annotated[
        Literal["whole", "partial", "regex", "fixed"],
        Field(
            description="`whole`: the value becomes the text `with`. `partial`: each character but the first and last "
            "ones becomes `with`; a value with no more characters than those is hidden whole. `regex`: each part that "
            "`pattern` finds becomes `with`. `fixed`: the value becomes `value`."
        ),
    ] = "whole"
    with_: Annotated[
        str | None,
        Field(
            alias="with",
            description=f"The text that hides. Absent: `{HIDDEN}`, and `*` for `partial`. With `regex`, `\\1` stands "
            "for the first group.",
        ),
    ] = None
    keep_first: Annotated[int | None, Field(ge=0, description="With `partial`: characters left at the start.")] = None
    keep_last: Annotated[int | None, Field(ge=0, description="With `partial`: characters left at the end.")] = None
    pattern: Annotated[
        str | None, Field(min_length=1, description="With `regex`: what to hide, in RE2 syntax.", examples=["[0-9]"])
    ] = None
    value: Annotated[bool | int | float | str | None, Field(description="With `fixed`: the value; absent: NULL.")] = (
        None
    )

    @model_validator(mode="after")
    def _has_its_options(self) -> Mask:
        owner = {"keep_first": "partial", "keep_last": "partial", "pattern": "regex", "value": "fixed"}
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        for name in sorted(given & owner.keys()):
            if owner[name] != self.how:
                raise _refused(f"`{name}` belongs to `how: {owner[name]}`", "leave one of them out")
        if self.how == "fixed" and self.with_ is not None:
            raise _refused("`with` says nothing to `how: fixed`", "use `value`")
        if self.how == "partial" and not (self.keep_first or self.keep_last):
            raise _refused("`partial` leaves nothing", "add `keep_first` or `keep_last`, or use `how: whole`")
        if self.how == "regex":
            self._check_pattern()
        return self

    def _check_pattern(self) -> None:
        if self.pattern is None:
            raise _refused("`regex` needs a `pattern`", "add one")
        try:
            pc.replace_substring_regex(pa.array([""]), self.pattern, self._hiding())
        except pa.ArrowInvalid as error:
            hint = "see the syntax of RE2: it has no look-around"
            raise _refused(f"the pattern cannot be compiled: {error}", hint) from None

    def kind(self, column: Kind) -> Kind:
        """What a masked column has."""
        if self.how != "fixed" or isinstance(self.value, str):
            return Kind("text")
        if self.value is None:
            return column
        if isinstance(self.value, bool):
            return Kind("bool")
        return Kind("int64" if isinstance(self.value, int) else "float64")

    def change(self) -> Change:
        match self.how:
            case "whole":
                return _constant(json.dumps(self._hiding(), ensure_ascii=False))
            case "fixed":
                return _constant(json.dumps(self.value, ensure_ascii=False))
            case "partial":
                first, last = self.keep_first or 0, self.keep_last or 0
                return _of_scalars(lambda texts: _partial(texts, first, last, self._hiding()))
            case "regex":
                pattern = str(self.pattern)
                return _of_scalars(lambda texts: pc.replace_substring_regex(texts, pattern, self._hiding()))

    def _hiding(self) -> str:
        if self.with_ is not None:
            return self.with_
        return "*" if self.how == "partial" else HIDDEN


class Hash(Model):
    """Replaces the values of columns by a hash, in hexadecimal digits, wherever they are, keys included: equal values
    stay equal, so that rows can still be told apart and joined. A NULL stays NULL.

    A text is hashed as it reads, any other value as its JSON text.
    """

    columns: Columns
    tables: Tables = ()
    salt: Annotated[
        Secret | None,
        Field(description="The hash is SHA-256 of this text and the value behind it.", examples=["${PII_SALT}"]),
    ] = None
    key: Annotated[
        Secret | None,
        Field(description="The hash is HMAC-SHA-256 of the value, with this key.", examples=["${PII_KEY}"]),
    ] = None

    @model_validator(mode="after")
    def _has_a_secret(self) -> Hash:
        given = [each for each in (self.salt, self.key) if each is not None and each.get_secret_value()]
        if len(given) != 1:
            raise _refused("a hash needs a `salt` or a `key`", "add one of them: without, values can be guessed")
        return self

    def kind(self, column: Kind) -> Kind:
        return Kind("text")

    def change(self) -> Change:
        """Each value is hashed once, however often it is there."""
        digest = self._digest()

        def hashed(text: Any, starts: Any, ends: Any) -> Any:
            there = np.where(kinds(text, starts) > NULL, starts, -1)
            found: Any = decoded(text, there, ends).dictionary_encode()
            digests = [f'"{digest(each.encode())}"' for each in found.dictionary.to_pylist()]
            return pa.array(digests, pa.string()).take(found.indices)

        return hashed

    def _digest(self) -> Callable[[bytes], str]:
        if self.key is not None:
            key = self.key.get_secret_value().encode()
            return lambda value: hmac.digest(key, value, "sha256").hex()
        assert self.salt is not None
        begun = hashlib.sha256(self.salt.get_secret_value().encode())

        def salted(value: bytes) -> str:
            one = begun.copy()
            one.update(value)
            return one.hexdigest()

        return salted


def _constant(text: str) -> Change:
    return lambda data, starts, ends: _where(kinds(data, starts) > NULL, pa.scalar(text))


def _of_scalars(hide: Callable[[Any], Any]) -> Change:
    """Texts and numbers through `hide`; objects and lists are hidden whole."""

    def change(text: Any, starts: Any, ends: Any) -> Any:
        found = kinds(text, starts)
        nested = np.isin(found, (OBJECT, ARRAY))
        scalars = decoded(text, np.where((found > NULL) & ~nested, starts, -1), ends)
        return pc.coalesce(quoted(hide(scalars)), _where(nested, pa.scalar(json.dumps(HIDDEN))))

    return change


def _partial(texts: Any, first: int, last: int, hiding: str) -> Any:
    length = pc.utf8_length(texts)
    enough = pc.greater(length, pa.scalar(first + last, length.type))
    hidden = pc.if_else(enough, pc.subtract(length, first + last), length)
    middle = pc.binary_repeat(pa.scalar(hiding), hidden)
    start: Any = pc.if_else(enough, pc.utf8_slice_codeunits(texts, 0, first), pa.scalar("")) if first else pa.scalar("")
    end = pc.if_else(enough, pc.utf8_slice_codeunits(texts, -last), pa.scalar("")) if last else pa.scalar("")
    joined = pc.binary_join_element_wise(start, middle, end, pa.scalar(""))
    return pc.if_else(pc.is_valid(texts), joined, pa.scalar(None, pa.string()))


def _where(rows: Any, text: Any) -> Any:
    found: Any = pc.if_else(pa.array(rows), text, pa.scalar(None, pa.string()))
    return found


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
