"""Python: a function of yours between the log and a sink, over Arrow batches or over single events."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from types import CodeType
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tailrace.change import OPS, PROCESSED, event_id
from tailrace.config import Script
from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.processors.outcome import EDITABLE, Made, Outcome, members, patched
from tailrace.processors.user_code import Code, Piece, UserCode, UserError, taken

ENTRY = "process"
"""What the function of an inline script is called."""
INLINE = "<inline>"
IMAGES = ("key", "before", "after")
ROUTES = frozenset({"topic", "key", "subject", "stream", "index", "url", "partition_key", "headers"})


class PythonProcessor(UserCode):
    """Calls a Python function in the tasks that read the log. It is trusted: it runs in the task's own process, without
    limits."""

    function: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
            description="`module:function`, importable wherever tasks run.",
            examples=["shop.rules:enrich"],
        ),
    ] = None
    inline: Annotated[
        Script | None,
        Field(description=f"Code that defines the function `{ENTRY}`, instead of `function`."),
    ] = None
    mode: Annotated[
        Literal["batch", "events"],
        Field(
            description="`events`: `event -> event | list | None`. `batch`: `RecordBatch -> RecordBatch`, in the "
            "columns of `tailrace.change.PROCESSED`."
        ),
    ] = "events"

    @field_validator("inline")
    @classmethod
    def _compiles(cls, script: str | None) -> str | None:
        try:
            _compiled(script or "")
        except (SyntaxError, ValueError) as error:
            place = f" at line {error.lineno}, column {error.offset}" if isinstance(error, SyntaxError) else ""
            message = f"the script cannot be compiled: {getattr(error, 'msg', error)}{place}"
            context = {"message": message, "hint": "lines count from the script's first"}
            raise PydanticCustomError("config.bad_script", "{message}", context) from None
        return script

    @model_validator(mode="after")
    def _has_one_function(self) -> PythonProcessor:
        if (self.function is None) == (self.inline is None):
            context = {"hint": "`function` names one that is installed, `inline` has the code"}
            raise PydanticCustomError("config.invalid_value", "needs one of `function` and `inline`", context)
        return self

    def load(self, place: Place) -> Code:
        function = _imported(self.function) if self.function else _defined(self.inline or "", self.id)
        return _Batches(function, self.id) if self.mode == "batch" else _Events(function, place)


def _compiled(script: str) -> CodeType:
    return compile(script, INLINE, "exec", dont_inherit=True)


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        hint = "install its package wherever tasks run, or check the name"
        raise ProcessorError("processor.no_function", f"there is no {name}: {error}", hint=hint) from None
    return _callable(found, name)


def _defined(script: str, processor: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": f"tailrace_inline_{processor}"}
    try:
        exec(_compiled(script), names)
    except Exception as error:
        message = f"'{processor}' cannot be loaded: {type(error).__name__}{_place(error)}"
        raise ProcessorError("processor.no_function", message, hint="lines count from the script's first") from None
    return _callable(names.get(ENTRY), ENTRY)


def _callable(found: Any, name: str) -> Callable[..., Any]:
    if not callable(found):
        hint = f"an inline script defines `def {ENTRY}(event)` or `def {ENTRY}(batch)`"
        raise ProcessorError("processor.no_function", f"there is no function {name}", hint=hint)
    function: Callable[..., Any] = found
    return function


def _called(function: Callable[..., Any], argument: Any) -> Any:
    """What the function answers. What it raises is told by name and place, without a value of a row."""
    try:
        return function(argument)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"failed with {type(error).__name__}{_place(error)}", said=said) from None


def _place(error: Exception) -> str:
    """Function and line of the user's code that an error comes from: the last frame, behind ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if each.filename != __file__]
    if not own:
        return ""
    file = "" if own[-1].filename == INLINE else f" of {own[-1].filename.rpartition('/')[2]}"
    return f" in {own[-1].name}, line {own[-1].lineno}{file}"


@dataclass(frozen=True)
class _Events:
    """A function over single events."""

    function: Callable[..., Any]
    place: Place

    def call(self, batch: pa.RecordBatch, piece: Piece) -> Outcome:
        outcome = Outcome()
        for place, row in zip(piece, taken(batch, piece).to_pylist(), strict=True):
            event = self._event(row)
            self._judge(_listed(_called(self.function, event)), event, row, place, outcome)
        return outcome

    def _event(self, row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            images = {name: None if row[name] is None else json.loads(row[name]) for name in IMAGES}
        except (ValueError, RecursionError):  # more digits in a number, or levels, than Python takes
            raise UserError("cannot be given an image that Python cannot read") from None
        source = {"connector": self.place.connector, "name": self.place.pipeline}
        names = {"db": row["database"], "schema": row["schema"], "table": row["table"]}
        return {
            **images,
            "source": {**source, **names, "position": row["position"], "txId": row["tx_id"]},
            **{"op": row["op"], "table": row["table"], "ts_us": row["ts_us"], "ts_ms": row["ts_us"] // 1000},
            "transaction": {"id": row["tx_id"], "total_order": row["tx_ordinal"] + 1},
            "event_id": event_id(row["source"], row["position"], row["tx_ordinal"], row["part"]),
            "tenant_id": self.place.tenant,
            **{"tags": list(row["tags"] or ()), "unchanged": list(row["unchanged"] or ())},
            **{"headers": dict(row["headers"] or ()), "route": dict(row["route"] or ())},
        }

    def _judge(
        self, answer: list[dict[str, Any]], event: dict[str, Any], row: Mapping[str, Any], place: int, outcome: Outcome
    ) -> None:
        """The event itself, or else the first of the answer, is the change; the others are made beside it."""
        if not answer:
            outcome.dropped[place] = "dropped"
            return
        itself = next((number for number, each in enumerate(answer) if each is event), 0)
        for number, each in enumerate(answer):
            columns = _columns(each, row)
            if number == itself:
                for name, value in columns.items():
                    outcome.changed[name][place] = value
            else:
                outcome.made.append(Made(place, columns))


def _listed(answer: Any) -> list[dict[str, Any]]:
    events = answer if isinstance(answer, list) else [] if answer is None else [answer]
    if all(isinstance(each, dict) for each in events):
        return events
    raise _unusable("an answer is an event, a list of events, or None")


def _columns(event: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says otherwise than the change."""
    found: dict[str, Any] = {}
    if event.get("table", row["table"]) != row["table"]:
        raise _unusable("an event cannot move to another table: route it instead")
    op = event.get("op", row["op"])
    if op not in OPS:
        raise _unusable("there is no such op: use c, u, d or r")
    if op != row["op"]:
        found["op"] = op
    for name in IMAGES:
        image = event.get(name, None if name != "key" else _UNSAID)
        text = row[name] if image is _UNSAID else _text(image, row[name])
        if text != row[name]:
            found[name] = text
    if op in ("c", "u", "r") and found.get("after", row["after"]) is None:
        raise _unusable("an event with the op c, u or r needs `after`: drop it, or set op to d")
    return found | _said(event, row)


_UNSAID = object()


def _said(event: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Tags and the route."""
    found: dict[str, Any] = {}
    tags, route = event.get("tags") or [], event.get("route") or {}
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _unusable("tags are a list of texts")
    if tags != list(row["tags"] or ()):
        found["tags"] = tags
    if not isinstance(route, dict) or not route.keys() <= ROUTES:
        raise _unusable(f"a route has {', '.join(sorted(ROUTES))}")
    said = {name: _routed(value) for name, value in route.items() if value is not None}
    if said != dict(row["route"] or ()):
        found["route"] = said
    return found


def _routed(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps({name: str(each) for name, each in value.items()}, ensure_ascii=False)
    return str(value)


def _text(image: Any, had: str | None) -> str | None:
    """An image as text: where it is what it was, and of its members those that are, in the text that they had."""
    if image is None:
        return None
    if had is not None and _dumped(image) == _dumped(was := json.loads(had)):
        return had
    if not isinstance(image, dict) or not all(isinstance(name, str) for name in image):
        raise _unusable("key, before and after are objects or None")
    if had is None or not isinstance(was := json.loads(had), dict):
        return patched(None, [(name, _written(value)) for name, value in image.items()])
    texts = members(had)
    spelled = _spelled(had)
    return patched(had, [(name, _member(name, value, was, texts, spelled)) for name, value in image.items()])


def _member(
    name: str, value: Any, was: Mapping[str, Any], texts: Mapping[str, str], spelled: Mapping[float, str]
) -> str | None:
    """None for a member that has its text; else a new one, in which floats that the text had are spelled as there."""
    if name in texts and _dumped(value) == _dumped(was[name]):
        return None
    return _written(value, spelled)


def _spelled(text: str) -> dict[float, str]:
    """How the text writes floats that Python would write otherwise."""
    found: dict[float, str] = {}

    def note(source: str) -> float:
        value = float(source)
        if repr(value) != source:
            found[value] = source
        return value

    json.loads(text, parse_float=note)
    return found


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_foreign)
    except (ValueError, RecursionError):
        raise _unusable("an image refers to itself, or is nested too deeply") from None


def _foreign(value: Any) -> str:
    """Decimals are texts, as everywhere in images."""
    if isinstance(value, Decimal):
        return str(value)
    raise _unusable(f"an image has a {type(value).__name__}: use what JSON has, or Decimal")


def _written(value: Any, spelled: Mapping[float, str] | None = None) -> str:
    """A value as JSON text; floats that JSON has no numbers for are texts."""
    match value:
        case float():
            return (spelled or {}).get(value) or _number(value)
        case dict():
            inner = (f"{json.dumps(str(name), ensure_ascii=False)}:{_written(v, spelled)}" for name, v in value.items())
            return "{" + ",".join(inner) + "}"
        case list() | tuple():
            return "[" + ",".join(_written(each, spelled) for each in value) + "]"
        case _:
            return _dumped(value)


def _number(value: float) -> str:
    text = json.dumps(value)
    return f'"{text}"' if text in ("NaN", "Infinity", "-Infinity") else text


def _unusable(what: str) -> UserError:
    return UserError(f"gave what cannot be used: {what}", code="processor.bad_answer")


@dataclass(frozen=True)
class _Batches:
    """A function over Arrow batches. Rows are known by `seq` and `part`."""

    function: Callable[..., Any]
    processor: str

    def call(self, batch: pa.RecordBatch, piece: Piece) -> Outcome:
        changes = taken(batch, piece)
        answer = self._fitting(_called(self.function, changes))
        places = {_id(row): place for place, row in zip(piece, changes.to_pylist(), strict=True)}
        before = {place: row for place, row in zip(piece, changes.to_pylist(), strict=True)}
        outcome, seen = Outcome(), Counter[int]()
        for row in answer.to_pylist():
            place = places.get(_id(row))
            if place is None:
                raise _unusable("a row has a `seq` and `part` that no change of the batch has")
            seen[place] += 1
            self._note(row, before[place], place, seen[place] > 1, outcome)
        outcome.dropped |= {place: "dropped" for place in piece if not seen[place]}
        return outcome

    def _fitting(self, answer: Any) -> pa.RecordBatch:
        if not isinstance(answer, pa.RecordBatch) or answer.schema.names != PROCESSED.names:
            raise _unusable("an answer is a RecordBatch with the columns of the one it was given")
        try:
            found: pa.RecordBatch = answer.cast(PROCESSED)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise _unusable("a column of the answer has another type") from None
        return found

    def _note(self, row: dict[str, Any], before: dict[str, Any], place: int, again: bool, outcome: Outcome) -> None:
        if any(row[name] != before[name] for name in PROCESSED.names if name not in (*EDITABLE, "dropped")):
            raise _unusable(f"only these columns may change: {', '.join(EDITABLE)}, dropped")
        changed = {name: row[name] for name in EDITABLE if row[name] != before[name]}
        for name in IMAGES:
            _check_object(changed.get(name))
        if again:
            outcome.made.append(Made(place, changed))
            return
        if row["dropped"] is not None:
            outcome.dropped[place] = str(row["dropped"])
        for name, value in changed.items():
            outcome.changed[name][place] = value


def _check_object(text: str | None) -> None:
    try:
        fits = text is None or isinstance(json.loads(text), dict)
    except ValueError:
        fits = False
    if not fits:
        raise _unusable("key, before and after are texts of JSON objects, or null")


def _id(row: Mapping[str, Any]) -> tuple[int, str | None]:
    return row["seq"], row["part"]
