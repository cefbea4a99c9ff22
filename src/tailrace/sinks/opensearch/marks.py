"""What the cluster remembers of a sink: one document, in an index of its own.

It has the log and its generation, the mark (the offset below which everything is delivered) and the reach (the offset
below which some attempt may have delivered). The reach is moved before a batch is sent. So a conflict of versions below
it is a repeat, and one beyond it is somebody else's document.

A version is the generation and, in its lower 44 bits, the offset in the log. A new log gets the next generation, so
that all its changes are newer than what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.contracts import Delivery, Span
from tailrace.errors import SinkError
from tailrace.sinks.opensearch.cluster import Cluster, path_of

OFFSET_BITS = 44
_CONFLICT = 409
_EVERYTHING = 1 << OFFSET_BITS


@dataclass(frozen=True)
class Claim:
    """What a writer may count on: versions begin at `base`, and offsets below `known` may be there already."""

    base: int
    known: int

    def version(self, offset: int) -> int:
        return self.base + offset


@dataclass(frozen=True)
class Progress:
    """The document. `logs`: each log's generation; the last one is the present. `place` is where it was found."""

    logs: Mapping[str, int] = field(default_factory=dict)
    log_id: str = ""
    mark: int = 0
    reach: int = 0
    place: tuple[int, int] | None = None

    @property
    def base(self) -> int:
        return self.logs[self.log_id] << OFFSET_BITS

    def of(self, log_id: str) -> Progress:
        """The progress with a log that is new to it."""
        generation = max(self.logs.values(), default=0) + 1
        return replace(self, logs={**self.logs, log_id: generation}, log_id=log_id, mark=0, reach=0)


class Marks:
    """Reads and moves the document of one sink of one pipeline."""

    def __init__(self, cluster: Cluster, index: str, delivery: Delivery, sink: str) -> None:
        self._cluster, self._index, self._sink = cluster, index, sink
        self._id = f"{delivery.pipeline}/{sink}"

    def make(self) -> None:
        """Make the index where there is none."""
        settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": True}
        body = {"settings": {"index": settings}, "mappings": {"dynamic": False}}
        if not self._cluster.ask("GET", path_of(self._index, "_settings"), also=(404,)).found:
            self._cluster.make(self._index, body)

    def read(self) -> Progress:
        """What is remembered; of a sink that never delivered nothing."""
        reply = self._cluster.ask("GET", path_of(self._index, "_doc", self._id), also=(404,))
        if not reply.found:
            return Progress()
        kept, place = reply.body["_source"], (reply.body["_seq_no"], reply.body["_primary_term"])
        return Progress(kept["logs"], kept["log_id"], kept["mark"], kept["reach"], place)

    def mark(self, log_id: str) -> int:
        """The offset below which everything of the log is delivered."""
        progress = self.read()
        return progress.mark if progress.log_id == log_id else 0

    def claim(self, span: Span) -> Claim:
        """Before a span is sent: note how far it reaches. Dead letters reach nowhere: what they repeat is known."""
        progress = self._current(self.read(), span)
        if span.letters:
            return Claim(progress.logs[span.log_id] << OFFSET_BITS, _EVERYTHING)
        if span.end > progress.reach or progress.place is None:
            self._write(replace(progress, reach=max(progress.reach, span.end)))
        return Claim(progress.base, progress.reach)

    def finish(self, span: Span) -> None:
        """After a span: move the mark behind it."""
        progress = self.read()
        if progress.log_id == span.log_id and progress.mark < span.end:
            self._write(replace(progress, mark=span.end, reach=max(progress.reach, span.end)))

    def _current(self, progress: Progress, span: Span) -> Progress:
        """The progress in the span's log. One that is not the present log was followed by another."""
        if span.log_id not in progress.logs:
            return self._written(progress.of(span.log_id)) if span.letters else progress.of(span.log_id)
        if span.log_id != progress.log_id and not span.letters:
            text = f"the log {span.log_id} was followed by {progress.log_id}: what is in the indices is newer"
            hint = "deliver the newer log; or give this one a sink with another id and indices of its own"
            raise SinkError("sink.version_ahead", text, hint=hint, where=self._sink)
        return progress

    def _written(self, progress: Progress) -> Progress:
        self._write(progress)
        return progress

    def _write(self, progress: Progress) -> None:
        """Only over what was read."""
        path, place = path_of(self._index, "_create", self._id), progress.place
        if place is not None:
            path = path_of(self._index, "_doc", self._id) + f"?if_seq_no={place[0]}&if_primary_term={place[1]}"
        kept: dict[str, Any] = {"logs": dict(progress.logs), "log_id": progress.log_id}
        numbers = {"mark": progress.mark, "reach": progress.reach}
        if self._cluster.ask("PUT", path, {**kept, **numbers}, also=(_CONFLICT,)).status == _CONFLICT:
            hint = "is the same pipeline running twice? Stop one of them; what is delivered stays as it is"
            text = f"somebody else moved the marks of {self._id}"
            raise SinkError("sink.unavailable", text, hint=hint, where=self._sink)
