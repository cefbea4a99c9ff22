"""What records are rendered for, and the JSON pieces that every envelope is made of, as Catalyst expressions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tailrace.change import EVENT_ID_SQL, PROCESSED_EVENT_ID_SQL
from tailrace.contracts import Delivery, Member, Provenance

_ESCAPED_IN_JSON = r'["\\\x00-\x1f]'


@dataclass(frozen=True)
class Rendering:
    """Whose records, of which kind of source. `processed`: the frame has the columns of `change.PROCESSED`, not just
    those of `change.CHANGES`."""

    delivery: Delivery
    provenance: Provenance
    processed: bool = False

    @property
    def event_id(self) -> Column:
        return F.expr(PROCESSED_EVENT_ID_SQL if self.processed else EVENT_ID_SQL)


def images() -> tuple[Column, ...]:
    """The members `before` and `after`, behind an opening brace."""
    null = F.lit("null")
    return (
        F.lit('{"before":'),
        F.coalesce(F.col("before"), null),
        F.lit(',"after":'),
        F.coalesce(F.col("after"), null),
    )


def member(each: Member) -> tuple[Column, Column]:
    """`,"name":value`, with null where there is none."""
    value = F.expr(each.sql)
    text = F.coalesce(value if each.json == "number" else json_string(value), F.lit("null"))
    return F.lit(f",{json_text(each.name)}:"), text


def optional_member(name: str) -> Column:
    """The member `name`, a list or a map, where the column has something to say, else nothing."""
    column = F.col(name)
    found = F.concat(F.lit(f',"{name}":'), F.to_json(column))
    return F.when(F.size(column) > 0, found).otherwise(F.lit(""))


def json_string(text: Column) -> Column:
    """`text` as a JSON string, quotes included. Only one that needs escaping pays for it."""
    escaped = F.to_json(F.struct(text.alias("v")))
    value = F.substring(escaped, F.lit(6), F.length(escaped) - 6)
    return F.when(text.rlike(_ESCAPED_IN_JSON), value).otherwise(F.concat(F.lit('"'), text, F.lit('"')))


def json_members(**names: str) -> Column:
    """Members that are columns, without braces. Only names that need escaping pay for it."""
    columns = {name: F.col(column) for name, column in names.items()}
    plain = [
        part
        for place, (name, column) in enumerate(columns.items())
        for part in (F.lit(f'{"," if place else ""}"{name}":"'), column, F.lit('"'))
    ]
    escaped = F.to_json(F.struct(*(column.alias(name) for name, column in columns.items())))
    members = F.substring(escaped, F.lit(2), F.length(escaped) - 2)
    return F.when(F.concat(*columns.values()).rlike(_ESCAPED_IN_JSON), members).otherwise(F.concat(*plain))


def base64_string(text: Column) -> Column:
    """The bytes of `text` in base64, in one line whatever the session says, as a JSON string."""
    return F.concat(F.lit('"'), F.translate(F.base64(text.cast("binary")), "\r\n", ""), F.lit('"'))


def json_text(text: str) -> str:
    """As JSON."""
    return json.dumps(text, ensure_ascii=False)
