"""The process that forks Spark's Python workers (`spark.python.daemon.module`). It runs PySpark's own loop,
after:

- **Imports once.** Spark puts its own zip and jar files on `sys.path`, and a worker forgets what it knew
  about them before every task, so every task reads their directories again. They go, unless PySpark is
  importable only from them. What tasks need is imported here, before the fork, and frozen out of the garbage
  collector's way.
- **No zombies.** Workers die with this process; this process with its JVM and, on a local master, both with
  the Python driver (`DRIVER_PID`).
- **No signal ends it.** A SIGTERM to all processes of a run is the driver's to answer, which lets running tasks finish.
  Spark ends this process by closing its standard input.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from tailrace.machine import lifeline, signals

DRIVER_PID = "TAILRACE_DRIVER_PID"
"""Environment: the Python driver's process id, set for local masters only."""

WARM = (
    "pyarrow",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.pandas.types",
    "pyspark.sql.datasource",
    "tailrace.spark.source",
    "tailrace.spark.task",
)
"""What every task imports."""


def main() -> None:
    """Prepare this process, then serve as PySpark's daemon until Spark closes our standard input."""
    signals.block()
    _guard()
    forget_archives()
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    os.register_at_fork(after_in_child=lifeline.bind_to_parent)
    daemon = importlib.import_module("pyspark.daemon")
    daemon.gc = Collector()  # type: ignore[attr-defined]
    daemon.manager()


class Collector:
    """Collects garbage after a task, as PySpark's workers do. Modules that tasks have loaded stay for good: to go
    through a compiler's objects again takes longer than a small task."""

    def __init__(self) -> None:
        self._modules = len(sys.modules)

    def collect(self) -> None:
        gc.collect()
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()


def forget_archives() -> None:
    """Drop Spark's archives from the import path where PySpark does not need them."""
    archives = {path for path in sys.path if _is_sparks(path)}
    rest = [path for path in sys.path if path not in archives]
    if not all(importable(name, rest) for name in ("pyspark", "py4j")):
        return
    sys.path[:] = rest
    for path in archives:
        sys.path_importer_cache.pop(path, None)


def _guard() -> None:
    jvm = os.getppid()
    driver = os.environ.get(DRIVER_PID)
    if driver is None:
        lifeline.post_sentinel(os.getpid(), over=[jvm])
    else:
        lifeline.post_sentinel(os.getpid(), over=[jvm, int(driver)], also=[jvm])


def _is_sparks(path: str) -> bool:
    """Whether Spark itself put it there: its jar, or a zip of its own `python/lib`; never a user's
    archive."""
    file = Path(path)
    if file.suffix == ".jar":
        return file.name.startswith("spark-core_")
    return file.name == "pyspark.zip" or (file.name.startswith("py4j-") and file.name.endswith("-src.zip"))


def importable(name: str, paths: Iterable[str]) -> bool:
    """Whether a module is found in one of `paths`."""
    return PathFinder.find_spec(name, [path or os.getcwd() for path in paths]) is not None


if __name__ == "__main__":
    main()
