"""The sink in a document: `mode` says which other keys there are."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.problems import DocumentError
from tailrace.sinks.postgres import PostgresEvents, PostgresMirror
from tailrace.spec import json_schema, load_pipelines

DOCUMENT = """\
metadata: {name: shop}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://u:hunter2@h/shop", tables: [t]}}
  sinks:
    - type: postgres
      config:
        id: copy
        dsn: postgresql://u:hunter2@h/copy
"""


def load(folder: Path, *lines: str) -> Any:
    file = folder / "pipeline.yaml"
    file.write_text(DOCUMENT + "".join(f"        {line}\n" for line in lines))
    [pipeline] = load_pipelines([file], {})
    return pipeline.sinks[0]


def test_each_mode_has_its_keys(tmp_path: Path) -> None:
    events = load(tmp_path, "mode: events", "table_name: events", "encoding: json", "envelope: {type: debezium}")
    mirror = load(tmp_path, "mode: mirror", "table_name: '{source}_{table}'", "lock_timeout: 50ms")
    assert isinstance(events, PostgresEvents) and isinstance(mirror, PostgresMirror)
    assert "hunter2" not in f"{events!r}{mirror!r}"
    assert pickle.loads(pickle.dumps(mirror)) == mirror


@pytest.mark.parametrize(
    ("lines", "path", "told"),
    [
        (["mode: both"], "spec.sinks[0].config.mode", "use one of: mirror, events"),
        (["table_name: events"], "spec.sinks[0].config.mode", ""),
        (["mode: mirror", "topic: x"], "spec.sinks[0].config.topic", ""),
        (["mode: mirror", "evolutoin: halt"], "spec.sinks[0].config.evolutoin", "evolution"),
        (["mode: mirror", "table_name: '{tabel}'"], "spec.sinks[0].config.table_name", "{table}"),
        (["mode: events", "table_name: x", "without_key: halt"], "spec.sinks[0].config.without_key", ""),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: list[str], path: str, told: str) -> None:
    with pytest.raises(DocumentError) as failure:
        load(tmp_path, *lines)
    problem = next(each for each in failure.value.problems if each.path == path)
    assert told in problem.hint
    assert "hunter2" not in str(failure.value)


def test_the_schema_knows_both_modes() -> None:
    text = str(json_schema())
    assert "'const': 'events'" in text and "'const': 'mirror'" in text
