"""Where the commands that look into a data directory find it, and how they write moments."""

from __future__ import annotations

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
