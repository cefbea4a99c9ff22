"""The task's half of the NATS sink: Arrow batches to messages, over one connection per process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailrace.contracts import Rejected, Span, Written, never
from tailrace.errors import SinkError
from tailrace.sinks.nats.connection import Access
from tailrace.sinks.nats.link import Link
from tailrace.sinks.nats.subjects import SubjectTemplate, problem_of
from tailrace.sinks.nats.window import Past, Record

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_ROOM = len("NATS/1.0\r\n\r\n")
_INSERTS = ("c", "r")

Identity = tuple[Access, str | None, str]
"""Who writes where: access, stream, and the subject's template."""

_links: dict[Identity, Link] = {}
_pasts: dict[Identity, Past] = {}


@dataclass
class NatsWriter:
    """Publishes in order per key and returns when the stream has every record that it does not refuse."""

    access: Access
    span: Span
    subject: SubjectTemplate
    stream: str | None
    patience: float
    seconds: float
    ending: Callable[[], bool] = never

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rejected: list[Rejected] = []
        until, link = time.monotonic() + self.seconds, None
        try:
            for batch in batches:
                link = link or self._link()
                rejected += self._send(link, batch, until)
        except BaseException:
            _discard(self._identity)
            raise
        return Written(rejected=tuple(rejected))

    @property
    def _identity(self) -> Identity:
        return self.access, self.stream, self.subject.text

    def _link(self) -> Link:
        identity = self._identity
        past = _pasts.setdefault(identity, Past())
        past.enter(self.span)
        found = _links.get(identity)
        if found is not None and not found.usable:  # it broke while nothing was under way
            _discard(identity)
        if identity not in _links:
            _links[identity] = Link(self.access, self.stream, past, self.subject.static is None)
        _links[identity].begin()
        return _links[identity]

    def _send(self, link: Link, batch: pa.RecordBatch, until: float) -> list[Rejected]:
        records: list[Record] = []
        refused: list[tuple[int, SinkError]] = []
        for row, fields in enumerate(batch.to_pylist()):
            try:
                records.append(self._record(row, fields, link.max_payload))
            except SinkError as error:
                refused.append((row, error))
        refused += link.send(records, self.patience, until, self.ending)
        return [Rejected(batch.slice(row, 1), error) for row, error in sorted(refused, key=lambda one: one[0])]

    def _record(self, row: int, fields: dict[str, Any], max_payload: int) -> Record:
        """Raises `SinkError` for what cannot be a message."""
        where = "{schema}.{table} at {position}".format(**fields)
        key = fields["record_key"] if "record_key" in fields else fields["key"]
        headers = self._headers(fields, key, where)
        value = fields["value"].encode()
        size = len(value) + _HEADER_ROOM + sum(len(f"{name}: {text}\r\n".encode()) for name, text in headers.items())
        if size > max_payload:
            text = f"the record has {size} bytes with its headers; the server's max_payload is {max_payload}"
            hint = "raise max_payload in the server's configuration (64MB at most), or leave large columns out"
            raise SinkError("sink.rejected", text, hint=hint, where=where)
        identity = None if fields["key"] is None else (fields["schema"], fields["table"], fields["key"])
        keys = tuple(one for one in (identity, key if "record_key" in fields else None) if one is not None)
        alone = identity is None and fields["op"] not in _INSERTS
        return Record(row, self._subject(fields, where), value, headers, keys, alone, where)

    def _subject(self, fields: dict[str, Any], where: str) -> str:
        said = fields.get("subject")
        subject = said if said is not None else self.subject.filled(fields)
        if subject is None:
            text = f"the change gives no subject for `{self.subject.text}`"
            hint = "use a column that every change of the table has, or leave the table out"
            raise SinkError("sink.unroutable", text, hint=hint, where=where)
        if (said is not None or self.subject.static is None) and (problem := problem_of(subject)):
            hint = "subjects are tokens with dots between them, such as `orders.created`"
            raise SinkError("sink.unroutable", f"the subject {subject!r} {problem}", hint=hint, where=where)
        return subject

    def _headers(self, fields: dict[str, Any], key: str | None, where: str) -> dict[str, str]:
        own = {"Nats-Msg-Id": fields["event_id"]}
        if self.stream is not None:
            own["Nats-Expected-Stream"] = self.stream
        if key is not None:
            own["df-key"] = key
        said = json.loads(fields.get("record_headers") or "{}")
        headers = {**{name: str(value) for name, value in said.items()}, **own}
        for name, value in headers.items():
            if problem := _header_problem(name, value, ours=name in own):
                hint = "leave it out, or encode it (a `key` template: use a column without such values)"
                raise SinkError("sink.rejected", f"the header `{name}` {problem}", hint=hint, where=where)
        return headers


def _header_problem(name: str, value: str, *, ours: bool) -> str:
    """Why a header cannot be sent as it is."""
    if not ours and name.lower().startswith("nats-"):
        return "is the server's: it would be an order to the stream"
    if not _HEADER_NAME.fullmatch(name):
        return "has a name with other characters than those of a token"
    if value != value.strip() or "\n" in value or "\r" in value:
        return "has a line break, or begins or ends with white space"
    return ""


def _discard(identity: Identity) -> None:
    link = _links.pop(identity, None)
    if link is not None:
        link.discard()
