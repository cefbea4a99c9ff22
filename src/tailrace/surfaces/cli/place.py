"""Where the commands that look into a data directory find it, and how they write moments."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.supervisor.layout import Layout

PlatformConfig = Annotated[Path | None, typer.Option(help="The platform document that names the data directory.")]
DataDir = Annotated[Path | None, typer.Option(help="The data directory, instead of the platform's.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def data_dir_of(platform_config: Path | None, data_dir: Path | None) -> Path:
    """The directory that these two options name."""
    from tailrace.spec import load_platform

    return data_dir or load_platform(platform_config).data_dir


def layout_of(platform_config: Path | None, data_dir: Path | None) -> Layout:
    """The directory that these two options name, with the platform's control store."""
    from tailrace.spec import load_platform
    from tailrace.supervisor.layout import Layout

    if data_dir is not None and platform_config is None:
        return Layout(data_dir)
    platform = load_platform(platform_config)
    return Layout(data_dir or platform.data_dir, platform.store.url)


def moment(us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def instant(text: str | None, code: str) -> int | None:
    """What `moment` writes, or how long ago (`2h`), as microseconds since 1970. Raises `code`."""
    from tailrace.config.values import parse_duration
    from tailrace.errors import ConfigError

    if text is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?\s*(ms|s|m|h|d)", text):
        return int((time.time() - parse_duration(text).total_seconds()) * 1e6)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        hint = "write it like 2026-01-31T12:00:00Z, or 2h for two hours ago"
        raise ConfigError(code, f"{text!r} is not a time", hint=hint) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(microseconds=1)
