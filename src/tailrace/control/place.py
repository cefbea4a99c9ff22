"""Where a control store is: a file's path, or the URL of a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path

from tailrace.config.secret import Dsn

StorePlace = Path | Dsn
SCHEMES = ("postgresql://", "postgres://")


def place_of(text: str) -> StorePlace:
    """The place that `text_of` wrote."""
    return Dsn(text) if text.startswith(SCHEMES) else Path(text)


def text_of(place: StorePlace) -> str:
    """A place for a pipe to another process: a URL has its password in it."""
    return place.get_secret_value() if isinstance(place, Dsn) else str(place)
