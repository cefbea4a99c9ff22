"""What a process says while it runs: one line for each thing that somebody should know of, on standard error.

    log = telemetry.logger(pipeline="shop", sink="lake")
    log.warning("pipeline.sink_write_error", code=error.code, hint=error.hint)

An event's name is stable and what happened to whom are fields, so that a search finds both. Nothing is said until
`configure` was called, and it alone says how: as lines of JSON, or as lines for people. Passwords are blanked in every
text (`config.secret.redact`). A field never has a value of a row: see `of_error`.

What other libraries log comes out the same way, from `WARNING` on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter

from tailrace.config.secret import redact
from tailrace.errors import OF_A_RECORD, TailraceError

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "human"]
"""`auto`: for people on a terminal, JSON elsewhere."""

MAY_QUOTE = OF_A_RECORD | {
    "sink.failed",
    "sink.table_failed",
    "sink.too_many_rejected",
    "sink.unfit_value",
    "snapshot.crashed",
    "source.crashed",
    "spark.internal",
    "spark.query_failed",
}
"""Errors whose message may quote a row, as may any of a processor: it has the words of a target about a record, of user
code, or of an exception that nobody foresaw."""
WITHHELD = "not logged, because it may quote a row: see the status, or tailrace dlq show"

_OURS = logging.getLogger("tailrace.events")
_OURS.addHandler(logging.NullHandler())
_OURS.setLevel(logging.INFO)

Event = MutableMapping[str, Any]


def logger(**fields: str) -> BoundLogger:
    """What says something about `fields`: `pipeline`, `source`, `sink`, `table`."""
    processors = [structlog.stdlib.filter_by_level, *_MADE, ProcessorFormatter.wrap_for_formatter]
    bound = structlog.wrap_logger(_OURS, processors=processors, wrapper_class=BoundLogger)
    return cast("BoundLogger", bound.bind(**fields))


def configure(level: Level = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """From now on say what is of this level or above, on `stream`: by default, what `sys.stderr` is at that time. Once
    in each process; a second call replaces the first."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Lines)]:
        root.removeHandler(handler)
    lines = _Lines(stream)
    renderer = _json() if is_json(form, stream) else _human(colors=lines.is_terminal())
    lines.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[*_MADE, _named_after_its_library],
            processors=[ProcessorFormatter.remove_processors_meta, _blanked, renderer],
        )
    )
    root.addHandler(lines)
    set_level(level)


def set_level(level: Level) -> None:
    """From now on say what is of this level or above, in this process; a tap has the level it was started with."""
    _OURS.setLevel(level.upper())


def level() -> Level:
    """What `set_level` set last."""
    return cast(Level, logging.getLevelName(_OURS.level).lower())


def is_json(form: Format, stream: TextIO | None = None) -> bool:
    """Whether lines of this format are JSON there."""
    return form == "json" or (form == "auto" and not (stream or sys.stderr).isatty())


def of_error(error: TailraceError | Mapping[str, str]) -> dict[str, str]:
    """An error as fields: its code, its message unless it may quote a row, the hint, and where it happened."""
    told = error.as_dict() if isinstance(error, TailraceError) else error
    more = {name: told[name] for name in ("hint", "where") if told.get(name)}
    return {"code": told["code"], "error": _message(told["code"], told["message"]), **more}


def _message(code: str, message: str) -> str:
    """Without what may quote a row. What a target answered stands behind a colon in a sink's message."""
    if code in MAY_QUOTE or code.startswith("processor."):
        return WITHHELD
    return message.partition(": ")[0] if code.startswith("sink.") else message


class _Lines(logging.StreamHandler[TextIO]):
    """Lines on a stream. What cannot be written, to a full disk or to nobody, is lost: the work goes on."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self._given = stream

    def emit(self, record: logging.LogRecord) -> None:
        # A view that owns the terminal puts something else there, to show lines above itself.
        self.stream = self._given or sys.stderr
        super().emit(record)

    def is_terminal(self) -> bool:
        return bool(self.stream.isatty())

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handleError(record)


def _json() -> structlog.processors.JSONRenderer:
    return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)


def _human(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=colors and not os.environ.get("NO_COLOR"), timestamp_key="at")


def _named_after_its_library(_: Any, __: str, event: Event) -> Event:
    """What another library says is no event of ours. A traceback may quote a row."""
    told = {name: value for name, value in event.items() if name not in ("exc_info", "stack_info")}
    return {**told, "event": "library.message", "library": event["_record"].name, "message": str(event["event"])}


def _blanked(_: Any, __: str, event: Event) -> Event:
    return {name: redact(value) if isinstance(value, str) else value for name, value in event.items()}


_MADE: list[Any] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
]
