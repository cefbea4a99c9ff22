"""What Delta's log tells of a table's versions: who made them, and the marks they have.

Restoring a table keeps its transaction versions, so marks since a restore are kept under a name of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Commit:
    """What made a version of a table."""

    version: int
    us: int
    operation: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mark: int | None = None

    def note(self, action: Mapping[str, Any], owner: str) -> None:
        """Take over what one of its actions says."""
        if "txn" in action:
            if base_of(action["txn"]["appId"]) == owner:
                self.mark = int(action["txn"]["version"])
            return
        made = action["commitInfo"]
        self.operation, self.parameters = made.get("operation", ""), made.get("operationParameters", {})
        self.us = made.get("inCommitTimestamp", self.us // 1000) * 1000


@dataclass(frozen=True)
class Restore:
    """The version `at` which a table was restored `to` an older one."""

    at: int
    to: int


def named(owner: str, generation: int) -> str:
    """What an owner's marks are kept under since version `generation`, at which the table was restored; 0: it never
    was."""
    return f"{owner}#{generation}" if generation else owner


def loading(owner: str) -> str:
    """Under whose name it is kept how far an owner's table is loaded. To others it is of another log."""
    return f"{owner}+loaded"


def base_of(name: str) -> str:
    """The owner of marks."""
    owner, _, generation = name.rpartition("#")
    return owner if owner and generation.isdigit() else name


def generation_of(name: str) -> int:
    return int(name.rpartition("#")[2]) if base_of(name) != name else 0
