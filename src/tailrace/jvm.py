"""What Spark and its JVM say when something goes wrong, as a person would want it told."""

from __future__ import annotations

from tailrace.config import redact

_CALLING = "An error occurred while calling "
_CAUSE = "Caused by: "


def reason(error: BaseException) -> str:
    """One line: what failed and, where Java gives one, its first cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line.removeprefix(": ") for line in lines if line and not line.startswith(_CALLING)]
    causes = [line.removeprefix(_CAUSE) for line in told if line.startswith(_CAUSE)]
    first = told[0] if told else type(error).__name__
    return redact(f"{first} ({causes[-1]})" if causes and causes[-1] not in first else first)
