"""A pipeline as the page shows it: REST's shape of it, and what the pages say besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tailrace.supervisor.service import PipelineRecord
from tailrace.supervisor.service.states import PipelineView
from tailrace.surfaces.rest.shapes import Ops, PipelineInfo

Pending = Literal["", "pausing", "stopping", "resuming"]


@dataclass(frozen=True)
class PipelineShown:
    """`info` is what REST tells. What is not known is None."""

    info: PipelineInfo
    view: PipelineView | None

    @staticmethod
    def of(record: PipelineRecord) -> PipelineShown:
        return PipelineShown(PipelineInfo.of(record, whole=True), record.view)

    @property
    def ops(self) -> Ops | None:
        return self.info.ops

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.spec.metadata.get("labels") or {}

    @property
    def lag_rows(self) -> int | None:
        """Changes that wait for the sink that is furthest behind."""
        known = [sink.lag_rows for sink in self.ops.sinks if sink.lag_rows is not None] if self.ops else []
        return max(known, default=None)

    @property
    def behind_s(self) -> float | None:
        """How long the oldest change that is known of has waited, in the source or in the log. Where the source cannot
        be asked, nobody knows that nothing waits there."""
        if self.ops is None or not self.ops.sinks:
            return None
        source = self.ops.source.lag_seconds if self.ops.source and self.ops.source.state == "running" else None
        sinks = max((each.lag_seconds for each in self.ops.sinks if each.lag_seconds is not None), default=None)
        if sinks is None or (source is None and sinks == 0):
            return None
        return max(sinks, source or 0.0)

    @property
    def newest(self) -> float | None:
        """When the newest change that a sink has was committed."""
        known = [each.last_change_at for each in self.ops.tables if each.last_change_at] if self.ops else []
        return max(known, default=None)

    @property
    def loss_s(self) -> float | None:
        return self.ops.source.time_to_loss_seconds if self.ops and self.ops.source else None

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """By part."""
        if self.ops is None:
            return []
        source = (
            [(f"source {self.ops.source.id}", text) for text in self.ops.source.warnings] if self.ops.source else []
        )
        return source + [(f"sink {sink.id}", text) for sink in self.ops.sinks for text in sink.warnings]

    @property
    def pending(self) -> Pending:
        """What was asked for and is not yet so."""
        match self.info.desired, self.info.status:
            case "paused", state if state != "paused":
                return "pausing"
            case "stopped", state if state != "stopped":
                return "stopping"
            case "running", "paused" | "stopped" | "created":
                return "resuming"
            case _:
                return ""

    @property
    def is_idle(self) -> bool:
        """Whether it is well, and nothing waits."""
        return self.info.status == "running" and self.lag_rows == 0
