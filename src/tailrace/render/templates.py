"""Routing templates as Catalyst expressions: the topic, key or path of each record.

A text value stands as it is, any other value as its JSON text. Where the change has no value for a hole (a
NULL, a column the image lacks, `after` of a delete) the whole result is NULL and the sink decides: a
destination that is NULL or empty stops the pipeline with `sink.unroutable`, a key that is NULL is a record
without a key.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tailrace import __version__
from tailrace.config import Reference, parse_template
from tailrace.errors import ConfigError
from tailrace.render.rendering import Rendering


def route_column(template: str, rendering: Rendering) -> Column:
    """The template filled in for each change, or NULL where a hole has no value.

    A template without holes is a literal: no work per row.
    """
    parts = [_part(part, rendering) for part in parse_template(template)]
    if len(parts) == 1:
        return parts[0]
    return F.concat(*parts) if parts else F.lit("")


def _part(part: str | Reference, rendering: Rendering) -> Column:
    match part:
        case str():
            return F.lit(part)
        case Reference(("op",)):
            return F.col("op")
        case Reference(("event_id",)):
            return rendering.event_id
        case Reference(("tenant_id",)):
            return F.lit(rendering.delivery.tenant)
        case Reference(("source", field)):
            return _source(field, rendering)
        case Reference((image, *path)):
            return F.get_json_object(F.col(image), _json_path(path))
        case _:
            raise AssertionError(f"a template cannot hold {part}")


def _source(field: str, rendering: Rendering) -> Column:
    """`${source.FIELD}`, equal to the member of that name in the native envelope."""
    provenance = rendering.provenance
    constants = {
        "connector": provenance.connector,
        "name": rendering.delivery.pipeline,
        "version": f"tailrace-{__version__}",
    }
    if field in constants:
        return F.lit(constants[field])
    common = {"db": "database", "schema": "schema", "table": "`table`", "ts_ms": "cast(ts_us div 1000 as string)"}
    sql = {**provenance.templates(), **common}
    if field not in sql:
        hint = "use " + ", ".join(f"`${{source.{name}}}`" for name in sorted({*sql, *constants}))
        message = f"changes of a {provenance.connector} source have no `source.{field}`"
        raise ConfigError("config.bad_template", message, hint=hint)
    return F.expr(sql[field])


def _json_path(names: list[str]) -> str:
    """Spark's path to a member. It has no way to write some characters: better refused than always NULL."""
    for name in names:
        if any(char in name for char in "'?*"):
            hint = "use a column whose name has none of ' ? *"
            raise ConfigError("config.bad_template", f"a template cannot reach the column `{name}`", hint=hint)
    return "$" + "".join(f"['{name}']" for name in names)
