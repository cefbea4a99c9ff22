"""`python -m tools.reference`: write the pages of `docs/reference` anew.

`--check` writes nothing, and fails if a page is not what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference import PAGES, stale

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


def check() -> None:
    if names := stale(FOLDER):
        sys.exit(f"docs/reference is not what the code says ({', '.join(names)}): run `make docs`")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["--check"]:
            check()
        case _:
            sys.exit("usage: python -m tools.reference [--check]")
