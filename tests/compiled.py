"""What a compiled file has of others, which numba's cache does not look at."""

from __future__ import annotations

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def digests(module: ModuleType) -> dict[str, str]:
    """The beginning of the SHA-256 of every compiled file that this one imports from."""
    text = Path(module.__file__ or "").read_text()
    names = re.findall(r"^from (tailrace\.[\w.]+) import", text, re.MULTILINE)
    found = {name.rpartition(".")[2]: (find_spec(name), name) for name in names}
    files = {short: Path(spec.origin or "") for short, (spec, _) in found.items() if spec is not None}
    return {
        short: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for short, file in files.items() if _is_compiled(file)
    }


def _is_compiled(file: Path) -> bool:
    return file.name == "buffers.py" or "@njit" in file.read_text()
