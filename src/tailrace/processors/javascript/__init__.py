"""JavaScript: a script of yours between the log and a sink, in an engine of its own with limits that hold."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

import pyarrow as pa
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Script
from tailrace.contracts import Place
from tailrace.processors.javascript import process
from tailrace.processors.javascript.process import ENGINES, Engine, EngineError
from tailrace.processors.javascript.wire import images_of, meta_of, outcome_of
from tailrace.processors.outcome import Outcome
from tailrace.processors.user_code import Piece, UserCode, UserError, taken

MOST_LINES = 200
"""Lines of a script's console that reach the log from one batch of the log, at most."""

_log = logging.getLogger(__name__)


class Limits(Model):
    """What a call of a script may use. A call gets at most 1,000 events, and 4 MiB of them."""

    cpu_ms: Annotated[int, Field(ge=1, description="Milliseconds of processor time.")] = 5_000
    mem_mb: Annotated[int, Field(ge=16, le=4096, description="MiB of memory.")] = 512
    timeout_ms: Annotated[int, Field(ge=1, description="Milliseconds of wall time.")] = 10_000


class JavaScriptProcessor(UserCode):
    """Calls `processBatch(events)` of a script with up to 1,000 events at a time."""

    inline: Annotated[
        Script,
        Field(
            description="The script. Its function `processBatch(events)` returns the events that are wanted.",
            examples=["function processBatch(events) { return events.filter(e => e.op !== 'd'); }"],
        ),
    ]
    limits: Annotated[Limits, Field(description="What a call may use.")] = Limits()

    @field_validator("inline")
    @classmethod
    def _loads(cls, script: str) -> str:
        said = _trouble(script)
        if said:
            context = {"message": f"the script cannot be loaded: {said}", "hint": "lines count from the script's first"}
            raise PydanticCustomError("config.bad_script", "{message}", context)
        return script

    def load(self, place: Place) -> _Loaded:
        return _Loaded(self.id, process.Script(self.inline, process.limits_of(self.limits.model_dump())), place)


@dataclass
class _Loaded:
    """A script. Between calls its engine is free for others that have the same script."""

    processor: str
    script: process.Script
    place: Place
    lines: int = field(default=0)

    def call(self, batch: pa.RecordBatch, piece: Piece) -> Outcome:
        changes = taken(batch, piece)
        engine = ENGINES.take(self.script)
        try:
            answer = json.loads(engine.call(meta_of(changes, self.place), images_of(changes)))
        except EngineError as error:
            raise _explained(str(error), self.script) from None
        finally:
            ENGINES.put_back(engine)
        self._print(answer["lines"], answer["unsaid"])
        return outcome_of(answer, batch, piece)

    def _print(self, lines: list[list[str]], unsaid: int) -> None:
        for level, text in lines:
            self.lines += 1
            if self.lines <= MOST_LINES:
                _log.log(logging.getLevelNamesMapping()[level.upper()], "%s: %s", self.processor, text)
        if unsaid or self.lines == MOST_LINES:
            _log.warning("%s: the script printed more than is shown", self.processor)


_LIMITS = {
    "interrupted": ("cpu_ms", "of processor time"),
    "timeout": ("timeout_ms", "of wall time"),
    "out of memory": ("mem_mb", "MiB of memory"),
    "null": ("mem_mb", "MiB of memory"),
}
_FRAME = re.compile(r"^    at (?:(?P<name>\S+) \()?<input>:(?P<line>\d+):(?P<column>\d+)\)?$", re.MULTILINE)


def _explained(said: str, script: process.Script) -> UserError:
    """What a failed call means to people, without anything that may be of a row."""
    headline, _, stack = said.partition("\n")
    kind, _, message = headline.partition(": ")
    limit = _LIMITS.get(message or headline) if kind in ("InternalError", "null") else None
    if limit is not None:
        name, unit = limit
        allowed = dict(script.limits)[name]
        reason = f"ran into its limit {name}: {allowed} {unit}"
        return UserError(reason, code="processor.limit")
    if kind == "AnswerError":
        return UserError(f"gave what cannot be used: {message}", code="processor.bad_answer")
    if kind == "EngineLost":
        return UserError(f"cannot be run: {message}")
    told = f": {message}" if message and _is_of(script.text, message) else ""
    return UserError(f"failed with {_word(kind)}{told}{_where(stack)}", said=headline)


_WORD = re.compile(r"\w+")
_ENGINE_WORDS = frozenset(
    _WORD.findall(
        "cannot read set property of undefined null is not a an function object defined to convert bigint number mix "
        "types use explicit conversion iterable expected constructor initialized value array symbol string BigInt"
    )
)


def _is_of(script: str, message: str) -> bool:
    """Whether a message has no word that is not the engine's or the script's own: then nothing in it is of a row."""
    return set(_WORD.findall(message)) <= _ENGINE_WORDS | set(_WORD.findall(script))


def _word(kind: str) -> str:
    return kind if re.fullmatch(r"[A-Za-z]*Error", kind) else "what it threw"


def _where(stack: str) -> str:
    """The first place of the script itself in a stack."""
    for frame in _FRAME.finditer(stack):
        if frame["name"] not in _PRELUDE:
            return f" at line {frame['line']}, column {frame['column']}"
    return ""


_PRELUDE = frozenset({"say", "worded", "word", "get", "set", "parsed", "exact", "print", "stringify", "toJSON"})


@lru_cache(maxsize=64)
def _trouble(script: str) -> str:
    """What keeps a script from being loaded; "" if nothing does."""
    engine = Engine(process.Script(script, process.limits_of(Limits().model_dump())))
    try:
        engine.load()
    except EngineError as error:
        found = _explained(str(error), engine.script)
        return f"{_headline(str(error), found)}{_where(str(error))}"
    finally:
        engine.close()
    return ""


def _headline(said: str, error: UserError) -> str:
    """A script that is loaded has seen no row: all that the engine says may be told."""
    return error.reason if error.code != "processor.failed" else said.partition("\n")[0]
