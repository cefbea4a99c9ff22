"""A driver to be killed: delivers a log slowly, starts again when a batch fails, ends when all is
delivered.

Two things that happen by chance elsewhere happen always here. It adopts orphans: without it the kernel hangs up on
a stopped process group that has lost its parent, and so ends workers by itself. And Spark takes seconds to
end the worker of an abandoned task."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
sys.path[0] = ROOT
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

from tailrace.capture.postgres.provenance import PROVENANCE  # noqa: E402
from tailrace.changelog import LogReader  # noqa: E402
from tailrace.contracts import Delivery  # noqa: E402
from tailrace.machine import java  # noqa: E402
from tailrace.spark.query import start_query  # noqa: E402
from tailrace.spark.session import JAVA_OPTIONS, open_session  # noqa: E402
from tests.spark.sinks import LinesSink  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36


def main(directory: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    settings = {"spark.python.task.killTimeout": "8s", JAVA_OPTIONS: java.QUICK}
    spark = open_session(directory / "spark.log", master="local[2]", conf=settings)
    end = LogReader(directory / "log").end
    for attempt, pause_s in (("1", 0.005), ("2", 0.0)):
        sink = LinesSink(id="lines", directory=str(directory / "out"), pause_s=pause_s)
        delivery = Delivery("shop-feed", attempt, "shop")
        query = start_query(
            spark, directory / "log", sink, delivery, provenance=PROVENANCE, state_dir=directory / "state"
        )
        while query.is_active() and query.progress().offset < end:
            time.sleep(0.01)
        if query.error() is None:
            query.drain(30)
            break
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
