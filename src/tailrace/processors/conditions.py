"""Conditions on changes: by table, by operation, by value, joined with and, or and not.

A condition is fulfilled, or not, or nobody can tell: a value that the source did not send (see `unchanged`) may be
anything. Who asks decides what then follows: a filter keeps such a change, a rule of a route does not apply to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.change import OPS
from tailrace.config import Model
from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.processors.images import Found, Search
from tailrace.processors.predicates import Predicate, Test, Values, test_of
from tailrace.processors.tables import TablePattern, TablePatterns, by_table
from tailrace.processors.texts import raw

Operation = Literal["create", "insert", "update", "delete", "read", "truncate", "message", "schema"]
"""`insert` is another word for `create`; `read` is a row of a snapshot."""
OPERATIONS = {
    **dict(zip(("create", "update", "delete", "read", "truncate", "message", "schema"), OPS, strict=True)),
    "insert": "c",
}

NO, UNKNOWN, YES = 0, 1, 2
"""Answers, as bytes of an array. And is the least of them, or the greatest, not is `YES` minus it."""

Answers = Any
Judge = Callable[["Rows"], Answers]


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        context = {"message": f"the pattern cannot be compiled: {error}", "hint": "see the syntax of Python's `re`"}
        raise PydanticCustomError("config.invalid_value", "{message}", context) from None
    return pattern


class Condition(Model):
    """What a change is to be like. All that is said must hold."""

    and_: Annotated[tuple[Condition, ...], Field(alias="and", description="All of these hold.")] = ()
    or_: Annotated[tuple[Condition, ...], Field(alias="or", description="One of these holds at least.")] = ()
    not_: Annotated[Condition | None, Field(alias="not", description="This does not hold.")] = None
    database: Annotated[
        str | None, Field(min_length=1, description="Name of the database; `*` for any characters.")
    ] = None
    table: Annotated[
        TablePattern | None,
        Field(
            description="A table, as `table`, `schema.table` or `database.schema.table`, with `*` for any characters."
        ),
    ] = None
    table_pattern: Annotated[
        str | None,
        AfterValidator(_compiled),
        Field(description="A regular expression that is found somewhere in the table's name.", examples=["^user_"]),
    ] = None
    operations: Annotated[tuple[Operation, ...], Field(description="One of these operations.")] = ()
    fields: Annotated[tuple[Predicate, ...], Field(description="Questions about values.")] = ()
    match: Annotated[Literal["all", "any"], Field(description="How many of `fields` must be answered with yes.")] = (
        "all"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if not self.model_fields_set - {"match"}:
            hint = "say what a change is to be like, such as `table: orders`"
            raise PydanticCustomError("config.invalid_value", "the condition is empty", {"hint": hint})
        return self

    def inner(self) -> Iterator[Condition]:
        """This condition and all in it."""
        yield self
        for each in (*self.and_, *self.or_, *([self.not_] if self.not_ else [])):
            yield from each.inner()


def breaks_mirror(conditions: Iterable[Condition]) -> str | None:
    """Why what these say of a row is not decided by its table, key and `after` alone."""
    for each in (inner for condition in conditions for inner in condition.inner()):
        if each.operations:
            return "it looks at operations, so that a row's last change may be left out"
        if any(predicate.op == "changed" for predicate in each.fields):
            return "it looks at what changed, so that a row's last change may be left out"
    return None


@dataclass(frozen=True)
class Asked:
    """A path that is asked about: the slots where its value may stand, and the columns, by name, that it may be in.

    `a.b` is a member of the column `a`, or the column `a.b`."""

    path: str
    slots: tuple[int, ...]
    columns: tuple[tuple[str, int], ...]


@dataclass
class Questions:
    """Every path that the conditions of a step ask about, found in one go."""

    place: Place
    halts: bool = False
    """Whether a value that nobody knows is an error."""
    search: Search = field(default_factory=lambda: Search(once=True))
    _slots: dict[tuple[str, ...], int] = field(default_factory=dict)

    def asked(self, path: str) -> Asked:
        whole, parts = (path,), tuple(path.split("."))
        columns = dict.fromkeys([path, parts[0]])
        return Asked(
            path,
            tuple(self._slot(each) for each in dict.fromkeys([whole, parts])),
            tuple((name, self._slot((name,))) for name in columns),
        )

    def _slot(self, path: tuple[str, ...]) -> int:
        if not self._slots:
            self.search.paths.root()
        if path not in self._slots:
            self._slots[path] = len(self._slots)
            self.search.paths.add(0, path, self._slots[path])
        return self._slots[path]


class Rows:
    """A batch of changes that is asked about. `wanted`: the others' answers do not matter."""

    def __init__(self, changes: pa.RecordBatch, questions: Questions, wanted: Any = None) -> None:
        self.changes, self.questions = changes, questions
        self.ops = np.asarray(pc.index_in(changes.column("op"), pa.array(OPS)))
        self._wanted = np.ones(len(changes), dtype=np.bool_) if wanted is None else wanted
        self._images: dict[str, Found] = {}

    @cached_property
    def brought(self) -> Any:
        """Which changes bring a row: they are asked about `after`."""
        return self._wanted & np.isin(self.ops, [OPS.index(op) for op in "cur"])

    @cached_property
    def taken(self) -> Any:
        """Which changes are deletes: they are asked about `before`, or the key where that lacks the column."""
        return self._wanted & (self.ops == OPS.index("d"))

    def judge(self, asked: Asked, test: Test, *, by_kind: bool) -> Answers:
        """What the test says of each change's value. `by_kind`: it wants to know what columns have numbers."""
        answers = np.full(len(self.ops), UNKNOWN, dtype=np.int8)
        for rows, image in self._where(asked):
            if rows.any():
                numeric = self._numeric(asked, rows) if by_kind else None
                values = Values(*_only(self.values(image, asked.slots), rows), numeric)
                answers[rows] = np.where(test(values), YES, NO)
        return answers

    def changed(self, asked: Asked) -> Answers:
        """Whether `before` and `after` differ. Where one of them is missing they do; what was not sent is the same."""
        old, new = (self._raw(image, asked) for image in ("before", "after"))
        same = np.asarray(pc.or_kleene(pc.equal(old, new), pc.and_(pc.is_null(old), pc.is_null(new))).fill_null(False))
        whole = np.asarray(pc.is_valid(self.changes.column("before")))
        answers = np.where(same & whole & self.brought, NO, YES)
        answers[self.brought & self._unsent(asked)] = NO
        answers[~(self.brought | self.taken)] = UNKNOWN
        return answers.astype(np.int8)

    def values(self, image: str, slots: Iterable[int]) -> tuple[Any, Any, Any]:
        """The bytes of `before`, `after` or `key`, and where the value of the first slot that has one is."""
        found = self._found(image)
        first, *others = slots
        text, starts, ends = found.values(first)
        for slot in others:
            _, more, more_ends = found.values(slot)
            starts, ends = np.where(starts < 0, more, starts), np.where(starts < 0, more_ends, ends)
        return text, starts, ends

    def _where(self, asked: Asked) -> Iterator[tuple[Any, str]]:
        """Which changes are to be asked about which image."""
        unsent = self._unsent(asked)
        yield self.brought & ~unsent, "after"
        if unsent.any():
            old = unsent & self._has("before", asked)
            self._refuse(unsent & ~old, asked)
            yield old, "before"
        if self.taken.any():
            old = self.taken & self._has("before", asked)
            of_key = self.taken & ~old & self._has("key", asked)
            yield old, "before"
            yield of_key, "key"
            yield self.taken & ~old & ~of_key & ~self._has_column(asked), "key"  # no value of that name, ever

    def _found(self, image: str) -> Found:
        """Where the values are; sought in those changes that need that image."""
        if image not in self._images:
            rows = self.brought if image == "after" else self.brought | self.taken if image == "before" else self.taken
            self._images[image] = self.questions.search(self.changes.column(image), np.where(rows, 0, -1))
        return self._images[image]

    def _has(self, image: str, asked: Asked) -> Any:
        return np.logical_or.reduce([self.values(image, [slot])[1] >= 0 for _, slot in asked.columns])

    def _raw(self, image: str, asked: Asked) -> Any:
        values = Values(*self.values(image, asked.slots))
        return raw(values.text, np.where(values.are_there(), values.starts, -1), values.ends)

    def _unsent(self, asked: Asked) -> Any:
        """Which changes lack the column because the source did not send it."""
        unchanged = self.changes.column("unchanged")
        lists = np.zeros(len(self.ops), dtype=np.bool_)
        names = pc.list_flatten(unchanged)
        if len(names):
            owners = np.asarray(pc.list_parent_indices(unchanged))
            mine = np.asarray(pc.is_in(names, pa.array([name for name, _ in asked.columns])))
            lists[owners[mine]] = True
        return lists & self.brought & ~self._has("after", asked) if lists.any() else lists

    def _refuse(self, lost: Any, asked: Asked) -> None:
        if self.questions.halts and lost.any():
            row = int(np.flatnonzero(lost)[0])
            schema, table = (self.changes.column(name)[row].as_py() for name in ("schema", "table"))
            raise ProcessorError(
                "processor.unsent_value",
                f"the source did not send `{asked.path}` with a change, so nobody knows whether the row is wanted",
                hint=f"ALTER TABLE {schema}.{table} REPLICA IDENTITY FULL, or ask about another column",
                where=f"{schema}.{table}",
            )

    def _has_column(self, asked: Asked) -> Any:
        """Which changes are of tables that have the column, as far as is known."""
        names = {name for name, _ in asked.columns}
        return self._of_versions(lambda table: table is None or any(c.name in names for c in table.columns))

    def _numeric(self, asked: Asked, rows: Any) -> Any:
        """Which of these changes are of tables whose column of that name has numbers."""
        numbers = ("decimal", "int", "uint", "float")
        found = self._of_versions(
            lambda table: (
                table is not None
                and any(c.name == asked.path and c.kind.name.startswith(numbers) for c in table.columns)
            )
        )
        return found[rows] if found.any() else None

    def _of_versions(self, holds: Callable[[Any], bool]) -> Any:
        """Which changes are of versions of tables that fulfil this."""
        numbers = np.asarray(self.changes.column("schema_id"))
        versions, which = np.unique(numbers, return_inverse=True)
        tables = self.questions.place.tables
        return np.array([holds(tables.get(int(each))) for each in versions], dtype=np.bool_)[which]


def judge_of(condition: Condition, questions: Questions) -> Judge:
    """The condition, ready to be asked about batches."""
    judges = [*_of_tables(condition), *(judge_of(each, questions) for each in condition.and_)]
    if condition.operations:
        judges.append(operations_judge(condition.operations))
    if condition.or_:
        judges.append(_joined(np.maximum, [judge_of(each, questions) for each in condition.or_]))
    if condition.not_ is not None:
        judges.append(_negated(judge_of(condition.not_, questions)))
    if condition.fields:
        judges.append(fields_judge(condition.fields, condition.match, questions))
    return _joined(np.minimum, judges)


def fields_judge(fields: Iterable[Predicate], match: str, questions: Questions) -> Judge:
    """Of the questions about values: all of them, or one."""
    judges = [_predicate_judge(each, questions) for each in fields]
    return _joined(np.minimum if match == "all" else np.maximum, judges)


def operations_judge(operations: Iterable[Operation]) -> Judge:
    wanted = sorted({OPS.index(OPERATIONS[each]) for each in operations})
    return lambda rows: np.where(np.isin(rows.ops, wanted), YES, NO).astype(np.int8)


def tables_judge(fits: Callable[[str, str, str], bool]) -> Judge:
    return lambda rows: np.where(by_table(rows.changes, fits), YES, NO).astype(np.int8)


def _of_tables(condition: Condition) -> Iterator[Judge]:
    if condition.table is not None:
        yield tables_judge(TablePatterns([condition.table]).fit)
    if condition.database is not None:
        databases = TablePatterns([condition.database])
        yield tables_judge(lambda database, schema, table: databases.fit("", "", database))
    if condition.table_pattern is not None:
        pattern = re.compile(condition.table_pattern)
        yield tables_judge(lambda database, schema, table: pattern.search(table) is not None)


def _predicate_judge(predicate: Predicate, questions: Questions) -> Judge:
    asked = questions.asked(predicate.path)
    if predicate.op == "changed":
        return lambda rows: rows.changed(asked)
    test = test_of(predicate.op, predicate.value)
    values = predicate.value if isinstance(predicate.value, tuple) else (predicate.value,)
    by_kind = any(isinstance(each, str) for each in values)
    return lambda rows: rows.judge(asked, test, by_kind=by_kind)


def _negated(judge: Judge) -> Judge:
    return lambda rows: YES - judge(rows)


def _joined(join: Any, judges: list[Judge]) -> Judge:
    if len(judges) == 1:
        return judges[0]
    return lambda rows: join.reduce([judge(rows) for judge in judges])


def _only(values: tuple[Any, Any, Any], rows: Any) -> tuple[Any, Any, Any]:
    text, starts, ends = values
    return values if rows.all() else (text, starts[rows], ends[rows])
