"""The task's half of the Kafka sink with transactions: one for each batch, with the progress in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from tailrace.contracts import Rejected, Span, Written
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.sinks.isolate import isolated
from tailrace.sinks.kafka.channel import Channel, Fenced
from tailrace.sinks.kafka.progress import Progress, Seen, abort, begin, commit
from tailrace.sinks.kafka.records import Records, allowed, as_given, names_of, without


@dataclass
class _Session:
    """A producer of this process, and what it committed last."""

    channel: Channel
    reached: tuple[str, int] | None = None
    """(log, offset)."""


_sessions: dict[str, _Session] = {}


@dataclass
class TransactionWriter:
    """Delivers a span in one transaction, or finds that it is there already. One task has all of a batch.

    The transaction is committed here: a task that dies behind that has delivered, and whoever repeats the batch finds
    its end in the progress. Nothing is sent outside of a transaction, so what a dead task left behind never shows.

    Where records are refused, nothing is committed: what becomes of them is the driver's to decide, and to keep, before
    the progress goes past them. The receipt names them; the repeat that finds them in the progress as set aside leaves
    them out.
    """

    progress: Progress
    records: Records
    span: Span
    _aside: frozenset[str] = frozenset()
    _rejected: list[Rejected] = field(default_factory=list)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            session = self._begun()
            if session is None:
                for _ in batches:  # counted, for whoever delivered them could not say so
                    pass
                return Written()
            return self._deliver(session, batches)
        except Fenced:
            self._discard()
            raise self.progress.fenced_by() from None
        except Exception:
            self._discard(tidily=True)
            raise
        except BaseException:
            self._discard()
            raise

    def _begun(self) -> _Session | None:
        """A transaction that has the progress in it; None where the span is delivered. That the progress is
        acknowledged says that nobody else has begun."""
        known = _sessions.get(self._identity)
        if known is not None and known.reached == (self.span.log_id, self.span.start):
            known.channel.cluster = self.progress.cluster
            with suppress(Fenced):  # by another task of this run, or by another run: see who
                self._begin(known.channel)
                return known
        self._discard()
        session = _sessions[self._identity] = _Session(self.progress.open())
        seen = self.progress.read(self.span.log_id)
        if self._is_there(seen):
            return None
        self._aside = seen.aside(self.span)
        self._begin(session.channel)
        return session

    def _is_there(self, seen: Seen) -> bool:
        """Whether the span is delivered. Raises where that cannot be told, or it is not ours to deliver."""
        if seen.run != self.progress.run:
            raise self.progress.fenced()
        offset = seen.offsets.get(self.span.log_id)
        if offset is None and self.span.start == self.span.began:
            return False
        if offset is None or offset < self.span.start:
            raise self._lost(offset)
        if self.span.start < offset < self.span.end:
            raise self.progress.fenced()
        return offset >= self.span.end

    def _lost(self, offset: int | None) -> SinkError:
        there = "nothing of this log" if offset is None else f"{offset}"
        return SinkError(
            "sink.progress_lost",
            f"changes before offset {self.span.start} were delivered, but the topic {self.progress.topic} says {there}",
            hint="restore that topic; or give the sink another id, and it delivers again what the log has",
            where=self.progress.cluster.sink,
        )

    def _begin(self, channel: Channel) -> None:
        begin(channel)
        self.progress.put(channel, self.span)
        failpoint("kafka.write.after_progress")

    def _deliver(self, session: _Session, batches: Iterator[pa.RecordBatch]) -> Written:
        channel, sound = session.channel, True
        for chunk in self._chunks(batches):
            if sound:
                self.records.send(channel, chunk)
                sound = channel.settle(allowed(chunk))
        if not (sound and channel.settle(0)):
            self._find_refused(channel)
        if self._rejected:
            self._discard(tidily=True)
            return Written(self._receipt(), tuple(self._rejected))
        self._commit(channel)
        session.reached = self.span.log_id, self.span.end
        return Written()

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            fit, refused = self.records.sendable(without(batch, self._aside))
            self._rejected += refused
            yield from self.records.chunks(fit)

    def _receipt(self) -> str:
        refused = (name for each in self._rejected for name in names_of(each.row))
        return json.dumps(sorted(self._aside.union(refused)))

    def _find_refused(self, channel: Channel) -> None:
        """A refused record breaks its transaction, and takes with it what was sent in one request. Find those that are
        refused by themselves."""
        suspects = channel.refused()
        if not suspects:
            raise channel.trouble()
        self._discard(tidily=True)
        for batch in pa.Table.from_batches(suspects).combine_chunks().to_batches():
            self._rejected += map(as_given, isolated(batch, self._try))
        self._discard()
        if not self._rejected:
            raise SinkError(
                "sink.refused",
                f"{channel.trouble().message}, though each record alone is taken",
                hint="set librdkafka's batch.size in `client_conf` to max.message.bytes of the topic, or less",
                where=self.progress.cluster.sink,
            )

    def _try(self, batch: pa.RecordBatch) -> None:
        """Raises where one of the records is refused; none is delivered."""
        session = _sessions.get(self._identity) or _Session(self.progress.open(batch_num_messages=1))
        _sessions[self._identity] = session
        begin(session.channel)
        self.records.send(session.channel, batch)
        if not session.channel.settle(0):
            self._discard()
            raise session.channel.trouble()
        abort(session.channel)

    def _commit(self, channel: Channel) -> None:
        failpoint("kafka.write.before_commit")
        commit(channel)
        failpoint("kafka.write.after_commit")

    @property
    def _identity(self) -> str:
        return f"{self.progress.cluster.identity} {self.progress.topic} {self.progress.run}"

    def _discard(self, *, tidily: bool = False) -> None:
        """Drop the session. `tidily`: take its transaction back as well, so that readers need not wait for that."""
        session = _sessions.pop(self._identity, None)
        if session is not None:
            session.channel.close()
            if tidily:
                with suppress(SinkError, Fenced):
                    abort(session.channel)


@dataclass
class LetterWriter(TransactionWriter):
    """Delivers dead letters again, in a transaction that has their ids in it, so that a repeat finds them there. The
    sink's offset stays where it is. Where records are refused, the rest is delivered without them."""

    _letters: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        self._letters = list(batches)
        refused: list[Rejected] = []
        while (written := super().write(iter(self._letters))).rejected:
            refused += written.rejected
            self._aside, self._rejected = frozenset(json.loads(written.receipt)), []
        self._discard()  # the next batch begins with a look at where the sink is
        return Written(rejected=tuple(refused))

    def _begun(self) -> _Session:
        self._discard()
        session = _sessions[self._identity] = _Session(self.progress.open())
        if self.progress.read().run != self.progress.run:
            raise self.progress.fenced()
        self._begin(session.channel)
        return session

    def _begin(self, channel: Channel) -> None:
        begin(channel)
        self.progress.put_letters(channel, self.span, self._delivered())

    def _delivered(self) -> list[str]:
        """The ids of the letters that this transaction brings."""
        if not self._aside:
            return list(self.span.letters)
        left = [event for batch in self._letters for event in without(batch, self._aside)["event_id"].to_pylist()]
        return [event for event in self.span.letters if event in left]
