from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace import __version__
from tailrace.change import event_id
from tailrace.errors import ConfigError
from tailrace.render.templates import route_column
from tests.processors.filling import CHANGE as ORACLES
from tests.processors.filling import TEMPLATES, filled
from tests.render.changes import DEFAULTS, DELIVERY, RENDERING, frame

CHANGE = {
    "op": "u",
    "key": '{"id":7,"part":"a"}',
    "before": '{"id":7}',
    "after": '{"id":7,"name":"Žofie \\"Z\\"","price":"12.50","ok":true,"none":null,"empty":"",'
    '"n a":1,"j":{"x":[1,{"y":2}]}}',
}


def route(spark: SparkSession, template: str, change: dict[str, Any]) -> str | None:
    column = route_column(template, RENDERING)
    found: str | None = frame(spark, change).select(column.alias("route")).collect()[0].route
    return found


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("orders.cdc", "orders.cdc"),
        ("a $$ sign", "a $ sign"),
        ("${source.schema}.${source.table}", "public.orders"),
        ("${source.db}/${source.name}/${source.connector}", "shop/shop/postgresql"),
        ("${source.version}", f"tailrace-{__version__}"),
        ("${source.lsn}-${source.txId}-${source.ts_ms}", "97500059720-771-1767225600123"),
        ("${op}-${tenant_id}", "u-demo"),
        ("${event_id}", event_id("shop-db", "16/B374D848", 0)),
        ("${key.id}${key.part}", "7a"),
        ("${before.id}", "7"),
        ("${after.name}", 'Žofie "Z"'),
        ("${after.price} ${after.ok} ${after.n a}", "12.50 true 1"),
        ("${after.j}", '{"x":[1,{"y":2}]}'),
        ("x${after.empty}", "x"),
        ("${after.none}", None),
        ("static-${after.missing}", None),
        ("${before.name}", None),
    ],
)
def test_a_template_is_filled_from_the_change(spark: SparkSession, template: str, expected: str | None) -> None:
    assert route(spark, template, CHANGE) == expected


def test_spark_and_the_processors_fill_templates_alike(spark: SparkSession) -> None:
    """Both agree with one oracle; tests/processors/test_route.py asks it about the processors."""
    for template in TEMPLATES:
        expected = filled(template, {**DEFAULTS, **ORACLES}, tenant=DELIVERY.tenant, pipeline=DELIVERY.pipeline)
        assert route(spark, template, ORACLES) == expected, template


def test_after_of_a_delete_has_no_value(spark: SparkSession) -> None:
    assert route(spark, "t-${after.id}", {"op": "d", "before": '{"id":1}', "after": None}) is None


def test_a_template_without_holes_is_a_literal(spark: SparkSession) -> None:
    column = route_column("orders.cdc", RENDERING)
    plan = frame(spark, CHANGE).select(column.alias("route"))._jdf.queryExecution().optimizedPlan().toString()
    assert "orders.cdc AS route" in plan


@pytest.mark.parametrize("name", ["it's", "what?", "*"])
def test_a_column_that_spark_cannot_name_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(ConfigError) as failure:
        route_column(f"${{after.{name}}}", RENDERING)
    assert failure.value.code == "config.bad_template"
