"""The ledger: one small file whose atomic replacement is the commit of a batch.

    1. tasks write and sync staged files                               invisible
    2. the ledger is replaced: new mark, and what to rename to what    ← the commit
    3. staged files are renamed into place                             visible

A crash before 2 leaves staged files that nobody knows: removed at the next start. A crash after 2 leaves
renames to do: `settle` does them, however often it is interrupted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tailrace.contracts import Span
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.machine.durable import USERS_DIRECTORY, USERS_FILE, make_directory, replace_file, sync_directory
from tailrace.sinks.file.layout import HIDDEN, explained
from tailrace.sinks.paths import path_segment


@dataclass(frozen=True)
class Page:
    """What the ledger says: the end offset reached in each log, the renames of the last commit, how many commits were
    of dead letters that were delivered again, and the event ids of the last of these."""

    marks: dict[str, int] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    replays: int = 0
    letters: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StagingDirectory:
    """Staged files of a sink, in a directory of their own under `root`."""

    root: Path
    directory: Path

    def explained(self) -> AbstractContextManager[None]:
        return explained(self.root)

    def draft(self) -> Path:
        return self.directory / uuid.uuid4().hex

    def stage(self, draft: Path, final: str) -> tuple[str, str]:
        return str(draft.relative_to(self.root)), final

    def finish(self) -> None:
        sync_directory(self.directory)

    def close(self) -> None:
        """What is left is removed at the next start."""


class FileLedger:
    """The ledger of one sink of one pipeline under `root`. Used by the driver only."""

    def __init__(self, root: Path, owner: str) -> None:
        self._root = root
        name = path_segment(*owner.split("."))
        self._file = root / HIDDEN / f"{name}.json"
        self._staging = root / HIDDEN / f"{name}.staging"

    def staging(self) -> StagingDirectory:
        return StagingDirectory(self._root, self._staging)

    def claim(self) -> None:
        make_directory(self._staging, USERS_DIRECTORY)
        others = [found.name for found in self._file.parent.glob("*.staging") if found != self._staging]
        if others:
            raise SinkError(
                "sink.path_in_use",
                f"{self._root} belongs to {others[0].removesuffix('.staging')}",
                hint=f"give each file sink a `path` of its own, or remove {self._file.parent / others[0]}",
                where=str(self._root),
            )

    def mark(self, log_id: str) -> int:
        return self._page().marks.get(log_id, 0)

    def replays(self) -> int:
        """How many commits were of dead letters."""
        return self._page().replays

    def replayed(self, letters: Collection[str]) -> frozenset[str]:
        """Which of these the last such commit had. What became of those before it, the journal knows."""
        return frozenset(letters) & frozenset(self._page().letters)

    def commit(self, span: Span, receipts: list[str]) -> None:
        self.settle()
        renames = [(staged, final) for receipt in receipts if receipt for staged, final in json.loads(receipt)]
        self._refuse_rivals(span, renames)
        known = self._page()
        if span.letters:
            page = replace(known, renames=renames, replays=known.replays + 1, letters=list(span.letters))
        else:
            page = replace(known, renames=renames, marks={**known.marks, span.log_id: span.end})
        failpoint("file.commit.staged")
        replace_file(self._file, json.dumps(asdict(page)), USERS_FILE)
        failpoint("file.commit.recorded")
        self.settle()

    def settle(self) -> None:
        """Do what the last commit decided. A staged file that is gone has been renamed already."""
        touched: set[Path] = set()
        for staged, final in self._page().renames:
            source, target = self._root / staged, self._root / final
            if source.exists():
                make_directory(target.parent, USERS_DIRECTORY)
                source.rename(target)
                touched.add(target.parent)
                failpoint("file.commit.renamed")
        for directory in sorted(touched):
            sync_directory(directory)
        failpoint("file.commit.published")

    def clear_staging(self) -> None:
        for staged in self._staging.iterdir():
            staged.unlink(missing_ok=True)

    def _page(self) -> Page:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Page()
        found = json.loads(text)
        found["renames"] = [(staged, final) for staged, final in found["renames"]]
        return Page(**found)

    def _refuse_rivals(self, span: Span, renames: list[tuple[str, str]]) -> None:
        """Another driver moves the mark or clears the staging; a lost ledger knows no visible file."""
        staged = all((self._root / source).exists() for source, _ in renames)
        if not staged or (not span.letters and self.mark(span.log_id) >= span.end):
            raise SinkError(
                "sink.rival",
                f"something else delivers to {self._root} under this sink's name",
                hint="is the same pipeline running twice? Stop the other one",
                where=str(self._root),
            )
        known = next((final for _, final in renames if (self._root / final).exists()), None)
        if known is not None:
            raise SinkError(
                "sink.already_there",
                f"{known} is there already, but {self._file} does not know it",
                hint=f"restore {HIDDEN}, or give the sink an empty `path`",
                where=str(self._root),
            )
