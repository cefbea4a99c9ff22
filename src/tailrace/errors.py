"""Every error Tailrace raises on purpose, and the one place that decides what follows from it.

    TailraceError
    ├── ConfigError    a document is wrong                      exit 2
    ├── SetupError     the machine or a server is not ready     exit 3
    ├── SourceError    the database                             exit 1
    │   └── Verdict    it cannot have what the log has          exit 1
    ├── LogError       the change log                           exit 1
    ├── SparkError     the Spark session or a query             exit 1
    ├── ProcessorError a step between the log and a sink        exit 1
    ├── SinkError      the place the changes go to              exit 1
    └── RunError       several of these, in one run             theirs, or 1

An error carries a stable `code`, a `hint` that names the way out, and where it happened. Callers branch on
`code` and attributes, never on the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, ClassVar


class Action(Enum):
    """What the supervisor does about an error."""

    RETRY = "retry"
    SET_ASIDE = "set_aside"
    STOP = "stop"


class TailraceError(Exception):
    """The root: `code` is stable, `message` is for people, `hint` says what to do next. `retry_after`: seconds that a
    server asked to be left alone for."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self, code: str, message: str, *, hint: str = "", where: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.where = where
        self.retry_after = retry_after

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.message}{place}"

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), self.as_dict())

    def as_dict(self) -> dict[str, str]:
        """The error as plain data, for `--json`, status files and crossing process borders."""
        told = {"code": self.code, "message": self.message, "hint": self.hint, "where": self.where}
        return told if self.retry_after is None else {**told, "retry_after": f"{self.retry_after:g}"}


class ConfigError(TailraceError):
    exit_code = 2


class SetupError(TailraceError):
    exit_code = 3


class SourceError(TailraceError):
    pass


class Verdict(SourceError):
    """The server is proven not to have what the log has. A later look may no longer show it, so the tap keeps it in
    the log: it stands until a repair."""


class LogError(TailraceError):
    pass


class SparkError(TailraceError):
    pass


class ProcessorError(TailraceError):
    pass


class SinkError(TailraceError):
    pass


class RunError(TailraceError):
    """Parts of a run failed, each for its own reason: see `errors`. The exit code is theirs where they agree."""

    def __init__(self, errors: Sequence[TailraceError]) -> None:
        self.errors = tuple(errors)
        told = "; ".join(str(error) for error in self.errors)
        super().__init__("run.failed", f"{len(self.errors)} parts of the run failed: {told}", hint="see each of them")
        codes = {error.exit_code for error in self.errors}
        self.exit_code = codes.pop() if len(codes) == 1 else TailraceError.exit_code  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        return RunError, (self.errors,)


def together(errors: Sequence[TailraceError]) -> TailraceError | None:
    """What a run ends with: the only error it has, or one that has all of them."""
    return RunError(errors) if len(errors) > 1 else next(iter(errors), None)


def rebuilt(kind: type[TailraceError], fields: Mapping[str, str]) -> TailraceError:
    """The error that `as_dict` told of."""
    retry_after = float(fields["retry_after"]) if "retry_after" in fields else None
    told = {name: fields[name] for name in ("code", "message", "hint", "where")}
    return kind(**told, retry_after=retry_after)


def located(error: TailraceError, where: str) -> TailraceError:
    """The error, with the place it happened at where it names none itself."""
    if error.where:
        return error
    found = copy(error)
    found.where = where
    return found


RETRYABLE = frozenset(
    {
        "dlq.full",
        "source.unreachable",
        "source.locked",
        "source.slot_in_use",
        "source.standby",
        "source.disconnected",
        "disk.full",
        "log.no_space",
        "store.busy",
        "store.unavailable",
        "sink.again",
        "sink.unavailable",
        "spark.still_writing",
        "spark.worker_lost",
    }
)

OF_A_RECORD = frozenset({"sink.rejected", "sink.unroutable"})
"""What is wrong with one record, so that others may go on without it."""


def decide(error: BaseException) -> Action:
    """Retry what time can heal. What is wrong with one record may be set aside, where the sink's `on_error` wants that,
    and stops the sink otherwise. Stop on everything else, so that nothing is skipped by accident."""
    if isinstance(error, TailraceError) and error.code in RETRYABLE:
        return Action.RETRY
    if isinstance(error, TailraceError) and error.code in OF_A_RECORD:
        return Action.SET_ASIDE
    return Action.STOP
