"""A master that is not local: the same pipeline on a real standalone cluster, with executors of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tests.whole import System

MASTER = "local-cluster[1,1,1024]"
"""Master, worker and executor of a standalone cluster, started by the driver."""
PROTECTED = 'spark.authenticate: "true", spark.authenticate.secret: between us, spark.network.crypto.enabled: "true"'


@pytest.mark.soak
def test_rows_reach_files_through_executors(
    system: Callable[..., System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot and delivery, with a data directory that is named as the driver sees it."""
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "spark")))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    shop = system()
    conf = f'conf: {{spark.executorEnv.PYTHONPATH: "{os.environ["PYTHONPATH"]}", {PROTECTED}, '
    platform = shop.platform.read_text().replace("conf: {", conf).replace("spark: {", f'spark: {{master: "{MASTER}", ')
    relative = os.path.relpath(tmp_path / "data")
    shop.platform.write_text(platform.replace(f"data_dir: {tmp_path}/data", f"data_dir: {relative}"))
    shop.db.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items SELECT generate_series(1, 300)")
    shop.catch_up()
    shop.compare("items")
    assert list((tmp_path / "spark" / "work").glob("app-*/0/stderr")), "an executor ran"


def spark_home(folder: Path) -> Path:
    """PySpark's own, where executors may have their work directories."""
    folder.mkdir()
    for part in ("bin", "jars", "python"):
        (folder / part).symlink_to(Path(pyspark.__file__).parent / part)
    return folder
