"""Files on S3-compatible storage: JSON lines or Parquet, per table and day."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Secret
from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.file.bucket import Access, Bucket, explained
from tailrace.sinks.file.objects import ObjectLedger
from tailrace.sinks.file.records import FilesSink


def _prefix(prefix: str) -> str:
    segments = [segment for segment in prefix.split("/") if segment]
    if not {".", ".."}.isdisjoint(segments):
        context = {"hint": "write it as folder/folder"}
        raise PydanticCustomError("config.invalid_value", "a prefix has no segments `.` and `..`", context)
    return "".join(f"{segment}/" for segment in segments)


class S3Sink(FilesSink):
    """Writes `s3://<bucket>/<prefix>/<schema>.<table>/<day>/<start>-<end>-<task>-<part>.jsonl` (or `.parquet`).

    Names, order and contents are those of the sink `file`: read a table's objects in the order of their *names*,
    whatever their folders.

    A repeat changes nothing, and the promise is that of the disk: delivery is exactly once, and one commit covers a
    whole batch. Tasks upload files as multipart uploads, which nobody sees. The commit is the replacement of one
    small object, `<prefix>/_tailrace/<pipeline>.<sink>.json`, that has the mark and says which uploads to complete;
    then they are completed. A crash in between is finished at the next start, which also aborts uploads that no
    commit knows. A plain listing shows committed files only.

    `prefix` belongs to this sink alone; a second driver is noticed, and commits nothing. The storage must honour
    conditional writes (`If-None-Match`, `If-Match`), as AWS S3 does, and keep unfinished uploads for as long as the
    pipeline may be stopped (see lifecycle rules of the bucket). Drafts are written to the machine's temporary
    directory, one file for each table that is under way.
    """

    bucket: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="The bucket, which must be there.")
    ]
    prefix: Annotated[
        str, Field(description="The folder in the bucket; absent: its root."), AfterValidator(_prefix)
    ] = ""
    endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^/@?#\s]+/?$",
            description="The server. Absent: AWS.",
            examples=["https://minio.example.com:9000"],
        ),
    ] = None
    region: Annotated[str | None, Field(description="The region. Absent: as the AWS SDK finds it.")] = None
    access_key_id: Annotated[
        str | None,
        Field(description="The key's id. Absent: as the AWS SDK finds it (environment, profile, role)."),
    ] = None
    secret_access_key: Annotated[Secret | None, Field(description="The key; never shown.")] = None
    virtual_hosted_style: Annotated[
        bool, Field(description="Whether the bucket is in the host's name rather than in the path.")
    ] = False
    root_cert: Annotated[
        Path | None, Field(description="Certificate authorities to trust, a PEM file. Absent: the system's.")
    ] = None

    @model_validator(mode="after")
    def _whole_key(self) -> S3Sink:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            context = {"hint": "add the other, or leave both out"}
            raise PydanticCustomError(
                "config.invalid_value", "access_key_id and secret_access_key go together", context
            )
        return self

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        try:
            with self._explained():
                self._bucket().look()
        except TailraceError as error:
            yield subject.failed("bucket", error)
        else:
            yield subject.ok("bucket", f"{self.bucket} can be listed")

    def _ledger(self, delivery: Delivery) -> ObjectLedger:
        return ObjectLedger(self._bucket(), self.prefix, f"{delivery.pipeline}.{self.id}")

    def _explained(self) -> AbstractContextManager[None]:
        return explained(f"s3://{self.bucket}/{self.prefix}")

    def _bucket(self) -> Bucket:
        secret = None if self.secret_access_key is None else self.secret_access_key.get_secret_value()
        return Bucket(
            self.bucket,
            Access(
                endpoint=self.endpoint,
                region=self.region or (None if self.endpoint is None else "us-east-1"),
                access_key_id=self.access_key_id,
                secret=secret,
                virtual_hosted_style=self.virtual_hosted_style,
                root_cert=self.root_cert,
            ),
        )
