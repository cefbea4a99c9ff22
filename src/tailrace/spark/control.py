"""What the driver tells the stream reader, which lives in another process: a small file, replaced atomically.

The reader polls it. `drain` is answered with an empty file: when it is there, every planned batch is
committed and none will follow, so that stopping the query interrupts nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tailrace.machine.durable import PRIVATE_FILE, replace_file


@dataclass(frozen=True)
class Orders:
    """Never plan past `target`; plan nothing new when `drain` is set."""

    target: int | None = None
    drain: bool = False


class Control:
    """Both ends of the file, in the query's state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "control.json"
        self._answer = state_dir / "drained"
        self._stamp: tuple[int, int] | None = None
        self._orders = Orders()

    def give(self, orders: Orders) -> None:
        """Driver: replace the orders. An earlier drain's answer is void."""
        self._answer.unlink(missing_ok=True)
        replace_file(self._file, json.dumps(asdict(orders)))

    def drained(self) -> bool:
        """Driver: whether the reader answered the order to drain."""
        return self._answer.exists()

    def orders(self) -> Orders:
        """Reader: the current orders; one `stat` when they have not changed."""
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return Orders()
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp != self._stamp:
            self._orders = Orders(**json.loads(self._file.read_text()))
            self._stamp = stamp
        return self._orders

    def answer(self) -> None:
        """Reader: every batch planned so far is committed."""
        self._answer.touch(PRIVATE_FILE)
