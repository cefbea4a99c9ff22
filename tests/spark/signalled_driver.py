"""A driver that sends every process of its Spark what would end it, while a task runs, and says what came of it; and
what others on the machine can see of it meanwhile."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tailrace.machine import java, signals
from tailrace.spark.session import JAVA_OPTIONS, open_session

SECRET = "spark.hadoop.fs.s3a.secret.key"


def main(directory: Path) -> None:
    heard: list[int] = []
    with signals.answered(heard.append):
        conf = {JAVA_OPTIONS: java.QUICK, "spark.ui.enabled": "true", "spark.ui.port": "0", SECRET: "known to Spark"}
        spark = open_session(directory / "spark.log", master="local[2]", conf=conf)
        began, go = str(directory / "began"), str(directory / "go")

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            Path(began).touch()
            while not Path(go).exists():
                time.sleep(0.01)
            yield from batches

        rows: list[Any] = []
        job = threading.Thread(
            target=lambda: rows.extend(spark.range(7).mapInArrow(task, "id bigint").collect()), daemon=True
        )
        job.start()
        while not Path(began).exists():
            time.sleep(0.01)
        family = {each: each.cmdline() for each in psutil.Process().children(recursive=True) if _is_alive(each)}
        seen = {
            "arguments": list(family.values()),
            "listens": [each.laddr.ip for process in family for each in process.net_connections() if _is_open(each)],
            "page": urllib.request.urlopen(spark.sparkContext.uiWebUrl or "").status,
            "secret": spark.sparkContext.getConf().get(SECRET),
        }
        for number in signals.ENDING:
            for each in (*family, psutil.Process()):
                each.send_signal(number)
        Path(go).touch()
        job.join()
        gone = [name for each, name in family.items() if not _is_alive(each)]
        print(json.dumps({"rows": len(rows), "processes": len(family), "gone": gone, "heard": heard, **seen}))
        spark.stop()


def _is_open(connection: Any) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN)


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


if __name__ == "__main__":
    main(Path(sys.argv[1]))
