"""Numbers, times and sizes as people read them. What is not known is a dash, and never zero."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

UNKNOWN = Markup('<span class="unknown"><span aria-hidden="true">—</span><span class="hidden">not known</span></span>')
MINUTE, HOUR, DAY = 60, 3600, 86400
EXACT_S = 9.95
"""Below, tenths of a second are told."""
KIB = 1024


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """The two largest units."""
    if seconds is None:
        return UNKNOWN
    if seconds < EXACT_S:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    if seconds < MINUTE:
        return f"{seconds} s"
    for unit, name, smaller, small in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if seconds >= unit:
            rest = int(seconds % unit // smaller)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("less than a minute was told above")


def size(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= KIB
    return f"{value:.1f} TiB"


def when(seconds: float | None) -> str:
    """A time since 1970; in the browser it becomes how long ago that is."""
    if seconds is None:
        return UNKNOWN
    at = datetime.fromtimestamp(seconds, UTC)
    exact = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-at="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), f"{seconds:.3f}", exact, exact
    )


def day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def marked(text: str) -> str:
    """What stands in backticks, as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "duration": duration,
    "size": size,
    "when": when,
    "day": day,
    "short": short,
    "marked": marked,
}
