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


MIRROR = (
    DOCUMENT[: DOCUMENT.index("    - ")]
    + "    - {type: postgres, config: {id: copy, mode: mirror, dsn: 'postgresql://u@localhost/copy'}}"
)


@pytest.mark.parametrize(
    ("document", "code"),
    [(DOCUMENT, "verify.one_writer"), (MIRROR, "verify.repairs_nothing")],
)
def test_nothing_is_repaired_where_that_is_not_safe(tmp_path: Path, document: str, code: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(document)
    platform = Platform(data_dir=tmp_path / "data")
    LogWriter(Layout(platform.data_dir).log("shop"), "shop").close()
    with pytest.raises(ConfigError) as caught:
        Verification(load_pipelines([file])[0], platform, VerifyOptions(repair=True))
    assert caught.value.code == code and "--repair" in str(caught.value.hint)
