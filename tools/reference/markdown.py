"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `make docs` from the code: change it there. -->"


def page(title: str, *parts: str) -> str:
    """A generated page."""
    return "\n\n".join([f"# {title}", MADE, *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may have line breaks and bars."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def code(text: str) -> str:
    """`text`, where it may have backticks itself."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def slug(heading: str) -> str:
    """The anchor of a heading: its words in small letters, joined by hyphens, without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")
