"""The task's half of the sink: rows to bulk requests, and what the cluster says of each document."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.backoff import Backoff
from tailrace.contracts import Delivery, Rejected, Span, Written
from tailrace.errors import Action as Follows
from tailrace.errors import SinkError, decide
from tailrace.sinks.opensearch.cluster import Access, Cluster, connected, reason_of, without_values
from tailrace.sinks.opensearch.completing import Half, completed
from tailrace.sinks.opensearch.documents import Action, Form, Place, Window, place_of
from tailrace.sinks.opensearch.indexes import Wanted, see_to
from tailrace.sinks.opensearch.marks import Claim, Marks
from tailrace.sinks.opensearch.truncating import deletes
from tailrace.sinks.pieces import pieces, whole_changes

PATIENCE_S = 3.0
"""How long documents that the cluster has no room for are sent again within the task, if none gets through."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_TOLD = "?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason"
_OF_A_REQUEST = (int(HTTPStatus.BAD_REQUEST), int(HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
_OF_THE_INDEX = ("index_closed_exception", "index_not_found_exception", "security_exception")
_PASSES = ("cluster_block_exception",)


@dataclass(frozen=True)
class Sizes:
    """Of a request, at most; a larger document is alone."""

    rows: int
    bytes: int


@dataclass
class OpenSearchWriter:
    """Sends rows in requests, one after another, and returns when each document has its answer."""

    access: Access
    form: Form
    wanted: Wanted
    sizes: Sizes
    mark_index: str
    delivery: Delivery
    span: Span
    _moved: dict[tuple[str, str, str], Place] = field(default_factory=dict)
    _halves: list[Half] = field(default_factory=list)
    _later: list[tuple[Action, pa.RecordBatch]] = field(default_factory=list)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rejected: list[Rejected] = []
        with connected(self.access) as cluster:
            claim = Marks(cluster, self.mark_index, self.delivery, self.access.sink).claim(self.span)
            for batch in whole_changes(batches):
                for piece in self._pieces(batch):
                    rejected += self._deliver(cluster, piece, claim)
            rejected += self._delete_moved(cluster, claim)
            rejected += self._refuse_halves(cluster, claim)
        return Written(rejected=tuple(rejected))

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        column: Any = batch.column("value" if self.form.mode == "events" else "after")
        sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        for first, last in pairwise(self._cuts(batch)):
            offsets = batch.column("seq").to_numpy()[first:last]
            for start, end in pieces(offsets, sizes[first:last], self.sizes.rows, self.sizes.bytes):
                yield batch.slice(first + start, end - start)

    def _cuts(self, batch: pa.RecordBatch) -> list[int]:
        """Truncates that delete are alone."""
        if self.form.truncates != "delete" or self.form.mode == "events":
            return [0, batch.num_rows]
        alone = [row for row, op in enumerate(batch.column("op").to_pylist()) if op == "t"]
        return sorted({0, *alone, *(row + 1 for row in alone), batch.num_rows})

    def _deliver(self, cluster: Cluster, piece: pa.RecordBatch, claim: Claim) -> Iterator[Rejected]:
        window = Window(self.form, piece, claim)
        truncated = window.truncated()
        if isinstance(truncated, SinkError):
            yield Rejected(piece, truncated)
            return
        if truncated is not None:
            yield from self._empty(cluster, piece, claim, *truncated)
            return
        actions, halves = completed(cluster, window.actions(self._moved), piece)
        yield from (Rejected(piece.slice(row, 1), error) for row, error in window.refused.items())
        self._halves += halves
        self._forget_halves(actions)
        for index in dict.fromkeys(action.place[0] for action in actions):
            see_to(cluster, index, self.wanted, self.access.sink)
        now = [action for action in actions if not action.moves]
        yield from self._send(cluster, now, piece, claim)
        yield from self._delete_moved(cluster, claim)
        self._later = [(action, piece) for action in actions if action.moves]

    def _forget_halves(self, actions: Sequence[Action]) -> None:
        """Rows that lack columns are of no account once a newer version of them is whole, or they are deleted: in a
        repeat that is why their documents are not there."""
        newest = {action.place: action.version for action in actions} if self._halves else {}
        self._halves = [half for half in self._halves if newest.get(half.action.place, -1) < half.action.version]

    def _refuse_halves(self, cluster: Cluster, claim: Claim) -> Iterator[Rejected]:
        """Those that are left. A delete of what is not there shows whether a newer one was there before."""
        for half in self._halves:
            action, probe = half.action, replace(half.action, body=None, missing=())
            known = action.version - claim.base < claim.known
            told = self._answers(cluster, [probe], half.piece, Claim(claim.base, 0)) if known else ()
            if not any(error.code == "sink.version_ahead" for _, error in told):
                yield Rejected(half.piece.slice(action.row, 1), half.error)
        self._halves = []

    def _empty(
        self, cluster: Cluster, piece: pa.RecordBatch, claim: Claim, index: str, version: int
    ) -> Iterator[Rejected]:
        """Delete what is in the index. Newer documents stay."""
        yield from self._delete_moved(cluster, claim)
        see_to(cluster, index, self.wanted, self.access.sink)
        self._halves = [half for half in self._halves if half.action.place[0] != index]
        for some in deletes(cluster, index, 0, version):
            yield from self._send(cluster, some, piece, Claim(claim.base, version - claim.base + 1))

    def _delete_moved(self, cluster: Cluster, claim: Claim) -> Iterator[Rejected]:
        """Documents that key changes leave are deleted one piece later: then those that take their columns over are
        there, also after a crash. What has their key meanwhile is newer, and stays."""
        for action, piece in self._later:
            yield from self._send(cluster, [action], piece, Claim(claim.base, action.version - claim.base + 1))
        self._later = []

    def _send(
        self, cluster: Cluster, actions: Sequence[Action], piece: pa.RecordBatch, claim: Claim
    ) -> Iterator[Rejected]:
        """Deliver every document. Those that the cluster has no room for now are sent again, while others get
        through."""
        waits, progressed = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S, 0.2), time.monotonic()
        while actions:
            again: list[Action] = []
            trouble: SinkError | None = None
            for action, error in self._answers(cluster, actions, piece, claim):
                match decide(error):
                    case Follows.SET_ASIDE:
                        yield Rejected(piece.slice(action.row, 1), error)
                    case Follows.RETRY:
                        again.append(action)
                        trouble = error
                    case Follows.STOP:
                        raise error
            progressed = progressed if len(again) == len(actions) else time.monotonic()
            wait = waits.next()
            if trouble and (time.monotonic() + wait > progressed + PATIENCE_S or self.delivery.ending()):
                raise trouble
            if again:
                time.sleep(wait)
                claim = Claim(claim.base, max(claim.known, int(piece.column("seq")[-1].as_py()) + 1))
            actions = again

    def _answers(
        self, cluster: Cluster, actions: Sequence[Action], piece: pa.RecordBatch, claim: Claim
    ) -> Iterator[tuple[Action, SinkError]]:
        """What became of documents that are not delivered. A request that is refused as a whole is sent in halves."""
        content = "".join([action.lines() for action in actions]).encode()
        reply = cluster.ask("POST", "/_bulk" + _TOLD, content, also=_OF_A_REQUEST)
        if reply.status >= HTTPStatus.BAD_REQUEST:
            if len(actions) == 1:
                where = place_of(piece, actions[0].row)
                yield actions[0], _rejected(f"{reply.status}: {reason_of(reply.text)}", where)
                return
            for first, last in pairwise((0, len(actions) // 2, len(actions))):
                yield from self._answers(cluster, actions[first:last], piece, claim)
            return
        if '"errors":false' in reply.text[:100]:
            return
        for action, item in zip(actions, reply.body["items"], strict=True):
            [told] = item.values()
            error = self._trouble(action, told, piece, claim)
            if error is not None:
                yield action, error

    def _trouble(self, action: Action, told: dict[str, Any], piece: pa.RecordBatch, claim: Claim) -> SinkError | None:
        """The error that an answer about a document is."""
        status, error = int(told["status"]), told.get("error")
        if error is None:  # also a delete of what is not there
            return None
        kind, where = error["type"], place_of(piece, action.row)
        text = f"{status} {kind}: {without_values(error.get('reason') or '')}"
        if status == HTTPStatus.CONFLICT:
            return None if action.version - claim.base < claim.known else self._ahead(action, where)
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR or kind in _PASSES:
            hint = "it is tried again by itself; see the server's own log"
            return SinkError("sink.unavailable", text, hint=hint, where=where)
        if kind in _OF_THE_INDEX or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            hint = "open or make the index, and check what the sink's user may do"
            return SinkError("sink.refused", text, hint=hint, where=where)
        return _rejected(text, where)

    def _ahead(self, action: Action, where: str) -> SinkError:
        index, _ = action.place
        text = f"a document of the index {index} is newer than the change, which was never delivered before"
        hint = (
            "somebody else writes there, or the marks of this sink were deleted: give the sink indices of its own, or "
            "delete this one and read its tables anew (`tailrace snapshot`)"
        )
        return SinkError("sink.version_ahead", text, hint=hint, where=where)


def _rejected(text: str, where: str) -> SinkError:
    hint = "change what the record holds, or the index's mapping, so that they fit"
    return SinkError("sink.rejected", text, hint=hint, where=where)
