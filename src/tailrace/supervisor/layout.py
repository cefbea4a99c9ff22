"""Where a run's files live under the data directory. The one place that knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """
    logs/SOURCE/                 the change log
    taps/SOURCE.{json,log}       the tap's status and what it printed
    pipelines/NAME/SINK/         a query's checkpoint
    control.db                   the control store
    spark.log                    what Spark printed
    """

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, source: str) -> Path:
        return self.logs / source

    @property
    def store(self) -> Path:
        return self.root / "control.db"

    def tap_status(self, source: str) -> Path:
        return self.root / "taps" / f"{source}.json"

    def tap_output(self, source: str) -> Path:
        return self.root / "taps" / f"{source}.log"

    def pipeline(self, name: str) -> Path:
        return self.root / "pipelines" / name

    def sink(self, pipeline: str, sink: str) -> Path:
        return self.pipeline(pipeline) / sink

    @property
    def spark_log(self) -> Path:
        return self.root / "spark.log"
