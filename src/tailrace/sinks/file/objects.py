"""The ledger on object storage: one small object whose conditional replacement is the commit of a batch.

    1. tasks upload their files as multipart uploads that nobody completes      invisible
    2. the ledger is replaced: new mark, and which uploads to complete          ← the commit
    3. the uploads are completed                                                visible

A crash before 2 leaves uploads that nobody knows: aborted at the next start. A crash after 2 leaves uploads to
complete: `settle` does it, however often it is interrupted. Every start of a driver replaces the ledger first, so
that a driver from before it can commit nothing any more.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tailrace.contracts import Span
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.sinks.file.bucket import OURS, Bucket, Conflict, Upload, explained
from tailrace.sinks.file.layout import HIDDEN
from tailrace.sinks.paths import path_segment

_AT_ONCE = 8

_drivers: dict[str, str] = {}
"""This process's drivers: the token that each put into its ledger, by the ledger's place."""
_settled: dict[str, str] = {}
"""The tag of the ledger whose uploads this process knows to be completed, by its place."""


@dataclass(frozen=True)
class ObjectPage:
    """What the ledger says: the end offset reached in each log, the uploads of the last commit, and whose it is; how
    many commits were of dead letters that were delivered again, and the event ids of the last of these."""

    marks: dict[str, int] = field(default_factory=dict)
    uploads: tuple[Upload, ...] = ()
    driver: str = ""
    replays: int = 0
    letters: tuple[str, ...] = ()


class _Current(NamedTuple):
    page: ObjectPage
    tag: str | None


@dataclass(frozen=True)
class ObjectStaging:
    """Drafts in a temporary directory of this machine; staged files as uploads of the bucket."""

    bucket: Bucket
    prefix: str

    def explained(self) -> AbstractContextManager[None]:
        return explained(f"s3://{self.bucket.name}/{self.prefix}")

    def draft(self) -> Path:
        return Path(self._directory.name) / uuid.uuid4().hex

    def stage(self, draft: Path, final: str) -> Upload:
        upload = self.bucket.upload(draft, self.prefix + final)
        draft.unlink()
        return upload

    def finish(self) -> None:
        """Each part is durable once it is answered."""

    def close(self) -> None:
        self._directory.cleanup()

    @cached_property
    def _directory(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True)


class ObjectLedger:
    """The ledger of one sink of one pipeline under `prefix`, which is empty or ends with a slash."""

    def __init__(self, bucket: Bucket, prefix: str, owner: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._folder = f"{prefix}{HIDDEN}/"
        self._key = f"{self._folder}{path_segment(*owner.split('.'))}.json"
        self._place = f"{bucket.access.endpoint} {bucket.name} {self._key}"
        self._where = f"s3://{bucket.name}/{prefix}"

    def staging(self) -> ObjectStaging:
        return ObjectStaging(self._bucket, self._prefix)

    def claim(self) -> None:
        """Also takes it from a driver that may still run: that one's commits fail from now on."""
        self._refuse_others()
        current = self._current()
        page = replace(current.page, driver=uuid.uuid4().hex)
        self._replace(current, page)
        _drivers[self._place] = page.driver
        self._refuse_others()  # which came at the same time

    def mark(self, log_id: str) -> int:
        return self._current().page.marks.get(log_id, 0)

    def replays(self) -> int:
        return self._current().page.replays

    def replayed(self, letters: Collection[str]) -> frozenset[str]:
        return frozenset(letters) & frozenset(self._current().page.letters)

    def commit(self, span: Span, receipts: list[str]) -> None:
        self.settle()
        uploads = tuple(_upload(told) for receipt in receipts if receipt for told in json.loads(receipt))
        current = self._current()
        self._refuse_rivals(current.page, span, uploads)
        failpoint("s3.commit.staged")
        page = replace(current.page, uploads=uploads)
        if span.letters:
            page = replace(page, replays=page.replays + 1, letters=span.letters)
        else:
            page = replace(page, marks={**page.marks, span.log_id: span.end})
        self._replace(current, page)
        failpoint("s3.commit.recorded")
        self.settle()

    def settle(self) -> None:
        """An upload that is gone has been completed already, if its object is there."""
        current = self._current()
        if current.tag is None or _settled.get(self._place) == current.tag:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = list(pool.map(self._complete, current.page.uploads))
        lost = next((each.key for each, there in zip(current.page.uploads, done, strict=True) if not there), None)
        if lost is not None:
            raise SinkError(
                "sink.files_lost",
                f"{lost} was committed, but its upload is gone and the object is not there",
                hint="something removed unfinished uploads, such as a lifecycle rule of the bucket, while the pipeline "
                "was stopped in the middle of a commit. Give the sink another prefix and read the tables anew: "
                "tailrace snapshot",
                where=self._where,
            )
        _settled[self._place] = current.tag

    def clear_staging(self) -> None:
        for key, upload in self._bucket.uploads(self._prefix):
            if OURS.search(key):
                self._bucket.abort(key, upload)

    def _complete(self, upload: Upload) -> bool:
        there = self._bucket.complete(upload)
        failpoint("s3.commit.completed")
        return there

    def _current(self) -> _Current:
        found = self._bucket.read(self._key)
        if found is None:
            return _Current(ObjectPage(), None)
        told = json.loads(found.content)
        page = {**told, "uploads": tuple(map(_upload, told["uploads"])), "letters": tuple(told.get("letters", ()))}
        return _Current(ObjectPage(**page), found.tag)

    def _replace(self, current: _Current, page: ObjectPage) -> None:
        """A conflict is none where the object is what was to be written: the answer to a first attempt was lost."""
        try:
            self._bucket.replace(self._key, json.dumps(asdict(page)).encode(), current.tag)
        except Conflict:
            if self._current().page != page:
                raise self._rival() from None

    def _refuse_rivals(self, page: ObjectPage, span: Span, uploads: Sequence[Upload]) -> None:
        """Another driver took the ledger, moved the mark or aborted the uploads; a lost ledger knows no object."""
        if page.driver != _drivers.get(self._place):
            raise self._rival()
        if not span.letters and page.marks.get(span.log_id, 0) >= span.end:
            raise self._rival()
        if {(each.key, each.id) for each in uploads} - set(self._bucket.uploads(self._prefix)):
            raise self._rival()
        if span.log_id in page.marks:
            return
        known = next((each.key for each in uploads if self._bucket.size(each.key) is not None), None)
        if known is not None:
            raise SinkError(
                "sink.already_there",
                f"{known} is there already, but {self._key} does not know it",
                hint=f"restore {HIDDEN}, or give the sink an empty `prefix`",
                where=self._where,
            )

    def _refuse_others(self) -> None:
        others = [key for key in self._bucket.keys(self._folder) if key != self._key]
        if others:
            raise SinkError(
                "sink.path_in_use",
                f"{self._where} belongs to {others[0].removeprefix(self._folder).removesuffix('.json')}",
                hint=f"give each sink a `prefix` of its own, or remove {others[0]}",
                where=self._where,
            )

    def _rival(self) -> SinkError:
        return SinkError(
            "sink.rival",
            f"something else delivers to {self._where} under this sink's name",
            hint="is the same pipeline running twice? Stop the other one",
            where=self._where,
        )


def _upload(told: Sequence[object]) -> Upload:
    key, upload, tags, size = told
    assert isinstance(tags, Sequence) and isinstance(size, int)
    return Upload(str(key), str(upload), tuple(map(str, tags)), size)
