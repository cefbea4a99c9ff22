"""A driver that sends every process of its Spark what would end it, while a task runs, and says what came of it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tailrace.machine import java, signals
from tailrace.spark.session import JAVA_OPTIONS, open_session


def main(directory: Path) -> None:
    heard: list[int] = []
    with signals.answered(heard.append):
        spark = open_session(directory / "spark.log", master="local[2]", conf={JAVA_OPTIONS: java.QUICK})
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
        for number in signals.ENDING:
            for each in (*family, psutil.Process()):
                each.send_signal(number)
        Path(go).touch()
        job.join()
        gone = [name for each, name in family.items() if not _is_alive(each)]
        print(json.dumps({"rows": len(rows), "processes": len(family), "gone": gone, "heard": heard}))
        spark.stop()


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


if __name__ == "__main__":
    main(Path(sys.argv[1]))
