"""Prometheus' own tools, out of the Debian package `prometheus`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.maven import locked, replacing

PACKAGE = "prometheus"
_HINT = "put promtool into the PATH, or run this on a Debian or Ubuntu whose package lists are there (apt-get update)"


def promtool() -> Path:
    """The program that checks rules, configurations and metrics. The one in the PATH, or else fetched once."""
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    target = cache_directory() / "debian-prometheus"
    with locked("debian"):
        if not target.exists():
            _fetch(target)
    return target / "usr" / "bin" / "promtool"


def _fetch(target: Path) -> None:
    with replacing(target) as draft:
        try:
            _download(draft)
            [package] = draft.glob("*.deb")
            _run(["dpkg-deb", "--extract", package.name, "."], draft)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise SetupError("environment.promtool", f"promtool could not be fetched: {said}", hint=_HINT) from None
        package.unlink()


def _download(folder: Path) -> None:
    """The package; where this machine's lists do not know it, once more with new ones."""
    try:
        _run(["apt-get", "download", PACKAGE], folder)
    except subprocess.CalledProcessError:
        _run(["apt-get", "update"], folder)
        _run(["apt-get", "download", PACKAGE], folder)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
