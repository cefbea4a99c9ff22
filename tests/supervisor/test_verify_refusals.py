"""What a verification refuses before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.changelog import LogWriter
from tailrace.errors import ConfigError
from tailrace.spec import Platform, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.verify import Verification, VerifyOptions

DOCUMENT = """
apiVersion: tailrace/v1
kind: Pipeline
metadata: {name: shop-lake}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://cdc@localhost/shop", tables: ["public.*"]}}
  sinks:
    - {type: delta, config: {id: lake, path: "s3://bucket/shop", s3_region: eu-north-1, write_mode: upsert}}
"""


def test_nothing_is_repaired_where_commits_of_two_may_undo_each_other(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(DOCUMENT)
    platform = Platform(data_dir=tmp_path / "data")
    LogWriter(Layout(platform.data_dir).log("shop"), "shop").close()
    with pytest.raises(ConfigError) as caught:
        Verification(load_pipelines([file])[0], platform, VerifyOptions(repair=True))
    assert caught.value.code == "verify.one_writer" and "--repair" in str(caught.value.hint)
