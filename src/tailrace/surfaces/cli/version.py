"""`tailrace version`: what runs here."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from tailrace import __version__
from tailrace.surfaces.cli.output import Json, say, say_json


def version(as_json: Json = False) -> None:
    """Print the versions of Tailrace, Python and Spark."""
    versions = {"tailrace": __version__, "python": platform.python_version(), "pyspark": _pyspark()}
    if as_json:
        say_json(versions)
    else:
        say(", ".join(f"{name} {number}" for name, number in versions.items()))


def _pyspark() -> str:
    """Read from the package's metadata: importing Spark would take longer than the whole command."""
    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return "missing"
