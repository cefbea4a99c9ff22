"""What is kept between runs: downloads, and scripts that stand before programs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_directory() -> Path:
    """`$TAILRACE_CACHE`, else `~/.cache/tailrace`."""
    given = os.environ.get("TAILRACE_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "tailrace"


def script(kind: str, name: str, text: str) -> Path:
    """An executable `bin/NAME` with this text: one for each text, so that environments that share a cache do not share
    what it names."""
    file = cache_directory() / kind / hashlib.sha256(text.encode()).hexdigest()[:12] / "bin" / name
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(file)
    return file
