"""Which options of envelopes go together, and with which sinks and sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.config import DebeziumEnvelope
from tailrace.errors import ConfigError
from tailrace.sinks.console import ConsoleSink
from tailrace.sinks.kafka import KafkaSink
from tailrace.spec import load_pipelines

PIPELINE = """
metadata: {name: shop}
spec:
  source: {type: postgres, config: {id: shop, dsn: postgresql://h/d, tables: [public.*]}}
  sinks:
    - {type: kafka, config: {id: bus, brokers: "h:1", topic: "t.${source.MEMBER}"}}
"""


@pytest.mark.parametrize("options", [{"schemas": True}, {"schemas": True, "values": "debezium", "wrapper": False}])
def test_schemas_need_values_to_describe_and_a_place_to_stand(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="stand in the wrapper"):
        DebeziumEnvelope.model_validate(options)


def test_tombstones_need_a_sink_that_has_them() -> None:
    envelope = {"type": "debezium", "tombstones": True}
    assert "op" in KafkaSink.model_validate({"id": "k", "brokers": "h:1", "topic": "t", "envelope": envelope}).columns()
    with pytest.raises(ValidationError, match="no records without a value"):
        ConsoleSink.model_validate({"id": "screen", "envelope": envelope})


@pytest.mark.parametrize("values", ["native", "debezium"])
def test_debeziums_values_are_the_last_step_of_the_chain(values: str) -> None:
    envelope = {"type": "debezium", "values": values}
    sink = ConsoleSink.model_validate({"id": "screen", "envelope": envelope, "filter": {"synthetic_only": True}})
    expected = ["filter", "envelope"] if values == "debezium" else ["filter"]
    assert [step.id for step in sink.chain()] == expected


@pytest.mark.parametrize(("member", "fine"), [("lsn", True), ("txId", True), ("table", True), ("gtid", False)])
def test_a_template_has_what_its_source_has(member: str, fine: bool, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.replace("MEMBER", member))
    if fine:
        assert load_pipelines([file], {})
        return
    with pytest.raises(ConfigError, match=r"no `source\.gtid`") as refused:
        load_pipelines([file], {})
    assert refused.value.code == "config.bad_template"
    assert "${source.lsn}" in refused.value.hint
