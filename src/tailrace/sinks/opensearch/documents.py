"""Changes as documents: where each goes, under which id and version, and what it holds. Nothing here is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.sinks.opensearch.indexes import problem_of_index
from tailrace.sinks.opensearch.marks import OFFSET_BITS, Claim

LONGEST_ID = 512
IS_DELETED = "_is_deleted"
"""What `soft_delete` adds to documents of deleted rows."""

Place = tuple[str, str]
"""An index and an id."""


@dataclass(frozen=True, slots=True)
class Action:
    """A document to write, or to delete (`body` None). `row` is its row of the batch. `missing`: columns that the body
    lacks, because the source did not send them; `was`: where the row's document is, if a key change moves it."""

    row: int
    place: Place
    version: int
    body: str | None
    missing: tuple[str, ...] = ()
    was: Place | None = None
    moves: bool = False
    """Whether a key change deletes it, whose other half may still need what it has."""

    def lines(self) -> str:
        """What stands for it in a request."""
        index, name = self.place
        what = "delete" if self.body is None else "index"
        target = f'"_index":{_quoted(index)},"_id":{_quoted(name)}'
        head = f'{{"{what}":{{{target},"version":{self.version},"version_type":"external"}}}}\n'
        return head if self.body is None else f"{head}{_in_one_line(self.body)}\n"

    def with_body(self, body: str) -> Action:
        return replace(self, body=body, missing=())


@dataclass(frozen=True)
class Form:
    """What a sink makes of changes. `index` is its template, and `static` the name, where every record has the same."""

    mode: Literal["mirror", "events"]
    index: str
    static: str | None
    document_id: str | None
    soft_delete: bool
    truncates: Literal["refuse", "keep", "delete"]


@dataclass
class Window:
    """Rows that are looked at together."""

    form: Form
    batch: pa.RecordBatch
    claim: Claim
    refused: dict[int, SinkError] = field(default_factory=dict)

    def actions(self, moved: dict[tuple[str, str, str], Place]) -> list[Action]:
        """What to do, in order: of several records of one change with one place, the last. `moved` says where rows
        whose key changed were, and is kept from window to window."""
        found: dict[tuple[Place, int], Action] = {}
        for row in self._rows():
            action = self._action(row, moved)
            if isinstance(action, Action):
                found.pop((action.place, action.version), None)
                found[action.place, action.version] = action
            elif action is not None:
                self.refused[row] = action
        return list(found.values())

    def truncated(self) -> tuple[str, int] | SinkError | None:
        """The index to empty, and the version to do it with, where this is one row, a truncate that deletes."""
        if self.form.truncates != "delete" or self._column("op")[:1] != ["t"]:
            return None
        index = self._index(0)
        return index if isinstance(index, SinkError) else (index, self.claim.version(self._column("seq")[0]))

    def _rows(self) -> Iterator[int]:
        """Those that are about a document."""
        if self.form.mode == "events":
            yield from range(self.batch.num_rows)
            return
        for row, op in enumerate(self._column("op")):
            if op in "crud":
                yield row
            elif op == "t" and self.form.truncates == "refuse":
                self.refused[row] = _truncate(place_of(self.batch, row))

    def _action(self, row: int, moved: dict[tuple[str, str, str], Place]) -> Action | SinkError | None:
        place = self._place(row)
        if isinstance(place, SinkError):
            return place
        version = self.claim.version(self._column("seq")[row])
        if self._column("seq")[row] >> OFFSET_BITS:
            raise SinkError("sink.refused", "the log is too long for versions of documents", hint="begin a new log")
        if self.form.mode == "events":
            return Action(row, place, version, self._column("value")[row])
        return self._of_row(row, place, version, moved)

    def _of_row(self, row: int, place: Place, version: int, moved: dict[tuple[str, str, str], Place]) -> Action:
        table, key = (self._column("schema")[row], self._column("table")[row]), self._column("key")[row]
        headers = dict(self._column("headers")[row] or ())
        if self._column("op")[row] == "d":
            if "new_key" in headers and key is not None:
                moved[*table, key] = place
            body = _tombstone(key) if self.form.soft_delete else None
            return Action(row, place, version, body, moves="new_key" in headers)
        was = moved.pop((*table, headers["old_key"]), None) if "old_key" in headers else None
        missing = tuple(self._column("unchanged")[row] or ())
        return Action(row, place, version, self._column("after")[row] or "{}", missing, was)

    def _index(self, row: int) -> str | SinkError:
        index: str | None = self._column("index")[row] or self.form.static
        if not index:
            return self._unroutable(row, f"the change gives no index for `{self.form.index}`")
        problem = _problem_of_index(index)
        return self._unroutable(row, f"`{index}` cannot be the name of an index: {problem}") if problem else index

    def _place(self, row: int) -> Place | SinkError:
        index = self._index(row)
        if isinstance(index, SinkError):
            return index
        name = self._name(row)
        if not name:
            missing = "the row has no key" if self.form.document_id is None else f"no id for `{self.form.document_id}`"
            return self._unroutable(row, f"the change gives no document: {missing}")
        if len(name.encode()) > LONGEST_ID:
            text, hint = f"the document's id has more than {LONGEST_ID} bytes", "set `document_id`"
            return SinkError("sink.rejected", text, hint=hint, where=place_of(self.batch, row))
        return index, name

    def _name(self, row: int) -> str | None:
        """The document's id: an event's, what the template or a processor says, or the values of the row's key."""
        if self.form.mode == "events":
            return str(self._column("event_id")[row])
        said: str | None = self._column("document_id")[row] or self._column("key")[row]
        return said if said is None or self.form.document_id is not None else name_of(said)

    def _unroutable(self, row: int, text: str) -> SinkError:
        hint = "use columns that every change of the table has, let a processor say it, or leave the table out"
        return SinkError("sink.unroutable", text, hint=hint, where=place_of(self.batch, row))

    def _column(self, name: str) -> list[Any]:
        """A column's values; nulls, where there is none."""
        if not hasattr(self, "_columns"):
            self._columns: dict[str, list[Any]] = {}
        if name not in self._columns:
            there = name in self.batch.schema.names
            self._columns[name] = self.batch.column(name).to_pylist() if there else [None] * self.batch.num_rows
        return self._columns[name]


def name_of(key: str) -> str:
    """The id that a key gives: its only value as text, or all of them as a JSON array. What is no JSON object is an id
    by itself."""
    try:
        values = json.loads(key, parse_float=_Spelled)
    except ValueError:
        return key
    if not isinstance(values, dict):
        return key
    found = list(values.values())
    if len(found) == 1 and isinstance(found[0], str):
        return str(found[0])
    texts = [str(value) if isinstance(value, _Spelled) else _quoted(value) for value in found]
    return texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"


class _Spelled(str):
    """A number as it is spelled: two that differ never give one id."""


def place_of(batch: pa.RecordBatch, row: int) -> str:
    """`schema.table at position`, for errors."""
    names: Any = (batch.column(name)[row].as_py() for name in ("schema", "table", "position"))
    return "{}.{} at {}".format(*names)


@cache
def _problem_of_index(name: str) -> str | None:
    return problem_of_index(name)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tombstone(key: str | None) -> str:
    """The columns of the key, and that the row is deleted."""
    inside = (key or "{}").strip()[1:-1].strip()
    return "{" + (f"{inside}, " if inside else "") + f'"{IS_DELETED}": true}}'


def _in_one_line(text: str) -> str:
    """Line breaks of JSON stand between its tokens only."""
    return text.replace("\r", " ").replace("\n", " ") if "\n" in text or "\r" in text else text


def _truncate(where: str) -> SinkError:
    text = "the table was truncated, which does not name its rows"
    hint = "set `truncates: delete`, or `keep` after you deleted its documents"
    return SinkError("sink.rejected", text, hint=hint, where=where)
