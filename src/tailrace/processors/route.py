"""Route: says where records go, by template and condition."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Template
from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.processors.chain import with_columns
from tailrace.processors.conditions import YES, Condition, Judge, Questions, Rows, judge_of, tables_judge
from tailrace.processors.routes import only, routed
from tailrace.processors.tables import TablePatterns, Tables
from tailrace.processors.templates import Fill, Templates

TARGETS = ("topic", "key", "subject", "stream", "index", "url", "partition_key")


class RouteRule(Model):
    """Where the changes go that it applies to. What it does not say, or cannot fill, is as the sink's own templates
    have it."""

    when: Annotated[Condition | None, Field(description="Only changes like this. Absent: all.")] = None
    tables: Tables = ()
    topic: Annotated[
        Template | None, Field(description="Topic of the record.", examples=["orders.${after.country}"])
    ] = None
    key: Annotated[Template | None, Field(description="Key of the record.", examples=["${after.customer_id}"])] = None
    headers: Annotated[
        dict[str, Template],
        Field(
            description="Headers of the record; a header that cannot be filled is left out.", examples=[{"op": "${op}"}]
        ),
    ] = Field(default_factory=dict)
    subject: Annotated[Template | None, Field(description="Subject, of sinks that have subjects.")] = None
    stream: Annotated[Template | None, Field(description="Stream, of sinks that have streams.")] = None
    index: Annotated[Template | None, Field(description="Index, of sinks that have indexes.")] = None
    url: Annotated[Template | None, Field(description="URL, of sinks that send requests.")] = None
    partition_key: Annotated[Template | None, Field(description="What decides the partition, where a sink asks.")] = (
        None
    )

    @model_validator(mode="after")
    def _says_where(self) -> RouteRule:
        if not self.headers and not self.targets():
            hint = "add one of " + ", ".join(f"`{name}`" for name in (*TARGETS, "headers"))
            raise PydanticCustomError("config.invalid_value", "the rule says nothing of where to", {"hint": hint})
        return self

    def targets(self) -> dict[str, str]:
        return {name: template for name in TARGETS if (template := getattr(self, name)) is not None}


class RouteProcessor(BatchProcessor):
    """Says of each change where its record goes: the first rule that applies to it does.

    A rule whose condition nobody can judge, because the source did not send a value, does not apply; nor does a
    condition on values to truncates, messages and schema changes. Tables of a lake are named by their sink: a route
    says nothing to them.
    """

    rules: Annotated[tuple[RouteRule, ...], Field(min_length=1, description="Rules, in the order they are tried in.")]

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"rows", "key", "schema"})

    def open(self, place: Place) -> Step:
        return _Router(self.rules, place)


class _Router:
    def __init__(self, rules: tuple[RouteRule, ...], place: Place) -> None:
        self._questions, self._templates = Questions(place), Templates(place)
        self._rules = [_Rule.of(each, self._questions, self._templates) for each in rules]

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        left = np.asarray(pc.is_null(changes.column("dropped"))).copy()
        rows = Rows(changes, self._questions)
        entries: dict[str, Any] = {}
        headers: dict[str, Any] = {}
        for rule in self._rules:
            mine = left & np.logical_and.reduce([judge(rows) == YES for judge in rule.judges], initial=True)
            if mine.any():
                left &= ~mine
                filler = self._templates.filler(changes.filter(pa.array(mine)))
                for into, fills in ((entries, rule.targets), (headers, rule.headers)):
                    for name, fill in fills.items():
                        texts = only(mine, fill(filler))
                        into[name] = pc.coalesce(into[name], texts) if name in into else texts
        if not entries and not headers:
            return changes
        return with_columns(changes, route=routed(changes.column("route"), entries, headers))


class _Rule:
    """A rule, ready to be asked."""

    def __init__(self, judges: list[Judge], targets: dict[str, Fill], headers: dict[str, Fill]) -> None:
        self.judges, self.targets, self.headers = judges, targets, headers

    @classmethod
    def of(cls, rule: RouteRule, questions: Questions, templates: Templates) -> _Rule:
        judges = [tables_judge(TablePatterns(rule.tables).fit)] if rule.tables else []
        if rule.when is not None:
            judges.append(judge_of(rule.when, questions))
        targets = {name: templates.fill(template) for name, template in rule.targets().items()}
        return cls(judges, targets, {name: templates.fill(each) for name, each in rule.headers.items()})
