"""Where a run's files live under the data directory. The one place that knows."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.config import Dsn
from tailrace.control import Store, StorePlace, refuse_lost, store_exists
from tailrace.errors import SetupError
from tailrace.machine.durable import PRIVATE_DIRECTORY, PRIVATE_FILE, make_directory, private
from tailrace.spec.platform import Platform

STORE_FILE = "control.db"


@dataclass(frozen=True)
class Layout:
    """
    logs/SOURCE/                 the change log
    taps/SOURCE.{json,log}       the tap's status and what it printed
    runtimes/NAME.log            what a runtime of the server printed
    pipelines/NAME/SINK/         a query's checkpoint
    control.db                   the control store, unless it is in a database (`store_url`)
    staged/SOURCE/               chunks of snapshots, until the log has them
    pipelines/NAME/SINK/verified.json  what the last verification found
    verify/NAME/                 chunks that a verification reads, while it runs
    spark.log                    what Spark printed
    """

    root: Path
    store_url: Dsn | None = None

    @classmethod
    def of(cls, platform: Platform) -> Layout:
        return cls(platform.data_dir, platform.store.url)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())  # taps and executors may stand elsewhere

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, source: str) -> Path:
        return self.logs / source

    @property
    def store(self) -> StorePlace:
        return self.store_url or self.root / STORE_FILE

    def has_store(self) -> bool:
        return store_exists(self.store)

    def open_store(self) -> Store:
        """The store, made where there is none yet. Raises `store.lost` where it is gone."""
        self.refuse_lost_store()
        return Store(self.store)

    def refuse_lost_store(self) -> None:
        refuse_lost(self.store, self.logs.iterdir() if self.logs.is_dir() else ())

    def tap_status(self, source: str) -> Path:
        return self.root / "taps" / f"{source}.json"

    def tap_output(self, source: str) -> Path:
        return self.root / "taps" / f"{source}.log"

    def runtime_output(self, name: str) -> Path:
        return self.root / "runtimes" / f"{name}.log"

    def pipeline(self, name: str) -> Path:
        return self.root / "pipelines" / name

    def sink(self, pipeline: str, sink: str) -> Path:
        return self.pipeline(pipeline) / sink

    def staged(self, source: str) -> Path:
        return self.root / "staged" / source

    def verified(self, pipeline: str, sink: str) -> Path:
        return self.sink(pipeline, sink) / "verified.json"

    def verifying(self, pipeline: str) -> Path:
        return self.root / "verify" / pipeline

    @property
    def spark_log(self) -> Path:
        return self.root / "spark.log"


@contextlib.contextmanager
def run_lock(layout: Layout, pipeline: str) -> Iterator[None]:
    """Held by the one process that runs a pipeline."""
    folder = layout.pipeline(pipeline)
    make_directory(folder)
    _close_to_others(layout)
    with open(folder / "run.lock", "a", opener=private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                "pipeline.running",
                f"the pipeline {pipeline!r} is already running in this data directory",
                hint="stop the other process, or use another data_dir",
            ) from None
        yield


def _close_to_others(layout: Layout) -> None:
    """What is ours in the data directory is this user's alone, also where it was made with other permissions. The
    directory itself, and what else is in it, may be somebody else's."""
    folders = (layout.root / name for name in ("logs", "taps", "runtimes", "pipelines", "staged", "verify"))
    files = (*layout.root.glob(f"{STORE_FILE}*"), layout.spark_log)
    for path, mode in (*((each, PRIVATE_DIRECTORY) for each in folders), *((each, PRIVATE_FILE) for each in files)):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            path.chmod(mode)


def is_running(layout: Layout, pipeline: str) -> bool:
    """Whether a process runs the pipeline."""
    try:
        with open(layout.pipeline(pipeline) / "run.lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
