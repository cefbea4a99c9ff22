"""Desired documents: what pipelines, sources and sinks are to be, with every version they had.

A document is kept as it was written: `${VAR}` stays a reference, so no secret is here unless somebody typed one in
clear.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from tailrace.control.audit import add_audit
from tailrace.control.events import add_event
from tailrace.control.store import Store
from tailrace.control.tables import document_labels, document_versions, documents
from tailrace.control.upsert import put
from tailrace.errors import ConfigError

DocumentKind = Literal["pipeline", "source", "sink"]
Content = Mapping[str, Any]
"""A parsed JSON document, with nothing expanded."""
ABSENT = 0
"""The version to expect of a document that must not be there yet."""
_AT, _OLD, _LABEL = documents.c, document_versions.c, document_labels.c


@dataclass(frozen=True)
class Version:
    """A version of a document, who made it and why. Without `content`: the document was deleted then."""

    kind: DocumentKind
    name: str
    version: int
    content: Content | None
    hash: str
    at_us: int
    actor: str
    cause: str


class Documents:
    """The documents of a store. A name's versions go on counting after it was deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(
        self,
        kind: DocumentKind,
        name: str,
        document: Content,
        *,
        expected_version: int | None,
        actor: str,
        cause: str,
    ) -> Version:
        """Make it the newest version; the same document again changes nothing. Raises `store.conflict` where the
        newest is not `expected_version` (`ABSENT`: there must be none; None: whatever it is)."""
        with self._store.transaction() as connection:
            newest = _expect(connection, kind, name, expected_version)
            if newest is not None and newest.hash == content_hash(document):
                return newest
            made = self._add(connection, kind, name, document, actor, cause)
            put(connection, documents, _row(made))
            _label(connection, made)
        return made

    def get(self, kind: DocumentKind, name: str) -> Version | None:
        with self._store.reading() as connection:
            return _newest(connection, kind, name)

    def list(
        self,
        kind: DocumentKind,
        *,
        labels: Mapping[str, str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Version]:
        """By name; those that have all these labels. The next page is `after` the last name."""
        query = sa.select(documents).where(_AT.kind == kind).order_by(_AT.name).limit(limit)
        for label, value in (labels or {}).items():
            same = (
                _LABEL.kind == _AT.kind,
                _LABEL.name == _AT.name,
                _LABEL.label == json.dumps(label),
                _LABEL.value == json.dumps(value),
            )
            query = query.where(sa.exists().where(*same).correlate(documents))
        if after is not None:
            query = query.where(_AT.name > after)
        with self._store.reading() as connection:
            return [_version(row) for row in connection.execute(query)]

    def history(
        self, kind: DocumentKind, name: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[Version]:
        """Its versions, also from before it was deleted, the newest first; the next page is `before` the last one's."""
        query = sa.select(document_versions).where(_OLD.kind == kind, _OLD.name == name)
        if before is not None:
            query = query.where(_OLD.version < before)
        with self._store.reading() as connection:
            return [_version(row) for row in connection.execute(query.order_by(_OLD.version.desc()).limit(limit))]

    def delete(self, kind: DocumentKind, name: str, *, expected_version: int | None, actor: str, cause: str) -> bool:
        """False where there is none. Raises `store.conflict` like `put`."""
        with self._store.transaction() as connection:
            if _expect(connection, kind, name, expected_version) is None:
                return False
            self._add(connection, kind, name, None, actor, cause)
            for table in (documents, document_labels):
                connection.execute(sa.delete(table).where(table.c.kind == kind, table.c.name == name))
        return True

    def _add(
        self, connection: sa.Connection, kind: DocumentKind, name: str, content: Content | None, actor: str, cause: str
    ) -> Version:
        """The next version, with its audit row and its event."""
        of_name = sa.select(sa.func.max(_OLD.version)).where(_OLD.kind == kind, _OLD.name == name)
        number = (connection.execute(of_name).scalar_one_or_none() or 0) + 1
        told = "" if content is None else content_hash(content)
        made = Version(kind, name, number, content, told, self._store.now_us(connection), actor, cause)
        connection.execute(sa.insert(document_versions).values(**_row(made)))
        action = "document.delete" if content is None else "document.put"
        detail = {"version": number, "hash": told}
        add_audit(self._store, connection, actor, action, kind, name, {**detail, "cause": cause})
        add_event(self._store, connection, kind, name, action, detail)
        return made


def content_hash(content: Content) -> str:
    """SHA-256 of the canonical JSON: keys in order, no blanks."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _canonical(content: Content) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _expect(connection: sa.Connection, kind: DocumentKind, name: str, expected: int | None) -> Version | None:
    """The newest version, if it is the expected one."""
    newest = _newest(connection, kind, name)
    there = ABSENT if newest is None else newest.version
    if expected is None or expected == there:
        return newest
    found = f"is at version {there}" if there else "is not there"
    wanted = f"version {expected} was expected" if expected else "it was to be new"
    raise ConfigError(
        "store.conflict",
        f"the {kind} {name!r} {found}, and {wanted}",
        hint="somebody changed it meanwhile: look at it again, and apply your change to what is there now",
        where=f"{kind}/{name}",
    )


def _newest(connection: sa.Connection, kind: DocumentKind, name: str) -> Version | None:
    row = connection.execute(sa.select(documents).where(_AT.kind == kind, _AT.name == name)).one_or_none()
    return None if row is None else _version(row)


def _label(connection: sa.Connection, made: Version) -> None:
    """Keep the document's labels where they can be searched; as JSON texts, which any text can be."""
    here = {"kind": made.kind, "name": made.name}
    connection.execute(sa.delete(document_labels).where(_LABEL.kind == made.kind, _LABEL.name == made.name))
    rows = [
        {**here, "label": json.dumps(label), "value": json.dumps(value)}
        for label, value in _labels(made.content or {}).items()
    ]
    if rows:
        connection.execute(sa.insert(document_labels), rows)


def _labels(content: Content) -> dict[str, str]:
    metadata = content.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return {str(label): str(value) for label, value in labels.items()} if isinstance(labels, Mapping) else {}


def _row(made: Version) -> dict[str, Any]:
    content = None if made.content is None else json.dumps(made.content, allow_nan=False)
    return {**vars(made), "content": content}


def _version(row: sa.Row[Any]) -> Version:
    return Version(**{**row._mapping, "content": None if row.content is None else json.loads(row.content)})
