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
from tailrace.change import EVENT_ID_SQL, PROCESSED_EVENT_ID_SQL
from tailrace.config import Reference, parse_template
from tailrace.contracts import Delivery
from tailrace.errors import ConfigError

_LSN = "substring_index(position, '#', 1)"
_LSN_DIGITS = f"concat(substring_index({_LSN}, '/', 1), lpad(substring_index({_LSN}, '/', -1), 8, '0'))"
LSN_SQL = f"conv({_LSN_DIGITS}, 16, 10)"
"""PostgreSQL's position `X/Y` (of a snapshot's row `X/Y#chunk`) as the decimal number Debezium calls `lsn`."""


def route_column(template: str, delivery: Delivery, connector: str, *, processed: bool = False) -> Column:
    """The template filled in for each change, or NULL where a hole has no value.

    A template without holes is a literal: no work per row.
    """
    parts = [_part(part, delivery, connector, processed) for part in parse_template(template)]
    if len(parts) == 1:
        return parts[0]
    return F.concat(*parts) if parts else F.lit("")


def _part(part: str | Reference, delivery: Delivery, connector: str, processed: bool) -> Column:
    match part:
        case str():
            return F.lit(part)
        case Reference(("op",)):
            return F.col("op")
        case Reference(("event_id",)):
            return F.expr(PROCESSED_EVENT_ID_SQL if processed else EVENT_ID_SQL)
        case Reference(("tenant_id",)):
            return F.lit(delivery.tenant)
        case Reference(("source", field)):
            return _source(field, delivery, connector)
        case Reference((image, *path)):
            return F.get_json_object(F.col(image), _json_path(path))
        case _:
            raise AssertionError(f"a template cannot hold {part}")


def _source(field: str, delivery: Delivery, connector: str) -> Column:
    """`${source.FIELD}`, equal to the member of that name in the native envelope."""
    fields = {
        "db": "database",
        "schema": "schema",
        "table": "`table`",
        "txId": "tx_id",
        "lsn": LSN_SQL,
        "ts_ms": "cast(ts_us div 1000 as string)",
    }
    constants = {"connector": connector, "name": delivery.pipeline, "version": f"tailrace-{__version__}"}
    return F.lit(constants[field]) if field in constants else F.expr(fields[field])


def _json_path(names: list[str]) -> str:
    """Spark's path to a member. It has no way to write some characters: better refused than always NULL."""
    for name in names:
        if any(char in name for char in "'?*"):
            hint = "use a column whose name has none of ' ? *"
            raise ConfigError("config.bad_template", f"a template cannot reach the column `{name}`", hint=hint)
    return "$" + "".join(f"['{name}']" for name in names)
