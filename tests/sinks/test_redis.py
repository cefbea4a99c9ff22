from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from tailrace.config import Dsn
from tailrace.contracts import Span, Subject, Written
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.redis import RedisSink, connection, writer
from tailrace.sinks.redis.connection import Call, connected
from tailrace.sinks.redis.scripts import ADD_ENTRIES
from tailrace.testing.servers import RedisServer
from tailrace.testing.suites.sinks import (
    DELIVERY,
    LOG,
    Change,
    Received,
    ServerSinkSuite,
    batch_for,
    deliver,
    span_of,
    versions,
    write,
)
from tests.sinks.redis_contents import NOBODY, client_of, entries, new_name, records, sink_of


class TestRedisSink(ServerSinkSuite):
    repeats = "absorbed"
    poison = "x" * (16 * 1024 * 1024 + 1)

    @pytest.fixture
    def sink(self, redis: RedisServer) -> RedisSink:
        return sink_of(redis, stream=new_name())

    @pytest.fixture
    def received(self, sink: RedisSink, redis: RedisServer) -> Received:
        return lambda: records(redis, sink.stream or "")

    @pytest.fixture
    def server(self, redis: RedisServer) -> RedisServer:
        return redis

    @pytest.fixture
    def hasty(self, sink: RedisSink) -> RedisSink:
        return sink.model_copy(update={"send_timeout_secs": 0.3})

    @pytest.fixture
    def unavailable(self) -> RedisSink:
        return RedisSink(id="cache", uri=Dsn(NOBODY), stream="anything", connect_timeout_secs=0.5)


def written(sink: RedisSink, *batches: pa.RecordBatch) -> Written:
    return sink.open(DELIVERY, Span(LOG, 0, 1), 0).write(iter(batches))


def with_ids(batch: pa.RecordBatch, ids: list[str]) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("event_id"), "event_id", pa.array(ids, pa.string()))


def with_columns(batch: pa.RecordBatch, **columns: list[Any]) -> pa.RecordBatch:
    for name, values in columns.items():
        batch = batch.append_column(name, pa.array(values, pa.string()))
    return batch


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_PIECE_ROWS", 3)
    monkeypatch.setattr(writer, "_WINDOW_ROWS", 8)


class TestEntries:
    def test_an_entry_has_its_record_and_its_ids(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        change = Change(7, 1, 0, text="žluťoučký 🐎\x00")
        deliver(sink, [change])
        row = change.row()
        ids = {"event_id": row["event_id"], "idempotency_key": row["event_id"]}
        assert entries(redis, sink.stream or "") == [{**ids, "df-event": change.value, "df-key": row["key"]}]

    def test_templates_choose_stream_and_key(self, redis: RedisServer) -> None:
        prefix = new_name()
        sink = sink_of(redis, stream=f"{prefix}.${{source.table}}", key="${after.n}")
        deliver(sink, [Change(0, 0, 5), Change(1, 0, 6, table="items"), Change(2, 0, 7)])
        assert [entry["df-key"] for entry in entries(redis, f"{prefix}.items")] == ["6"]
        assert [entry["df-key"] for entry in entries(redis, f"{prefix}.orders")] == ["5", "7"]

    def test_a_record_without_a_key_has_none(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name(), key="${before.id}")
        deliver(sink, [Change(0, 0, 0)])
        assert "df-key" not in entries(redis, sink.stream or "")[0]

    def test_what_processors_say_is_honoured(self, redis: RedisServer) -> None:
        sink, other = sink_of(redis, stream=new_name()), new_name()
        batch = batch_for(sink, [Change(0, 0, 0), Change(1, 1, 0)])
        said: dict[str, list[Any]] = {
            "stream": [other, None],
            "record_key": ["mine", "its"],
            "record_headers": ['{"team": "ž"}', None],
        }
        written(sink, with_columns(batch, **said))
        [entry] = entries(redis, other)
        assert (entry["df-key"], entry["team"]) == ("mine", "ž")
        assert [entry["df-key"] for entry in entries(redis, sink.stream or "")] == ["its"]
        assert sink.routed() == {"stream": "stream", "record_key": "key", "record_headers": "headers"}

    def test_a_change_without_a_stream_keeps_no_other_back(self, redis: RedisServer) -> None:
        prefix = new_name()
        sink = sink_of(redis, stream=prefix + ":${after.n}")
        batch = batch_for(sink, [Change(0, 0, 0), Change(1, 1, 0), Change(2, 2, 0)])
        streams: Any = pa.array([f"{prefix}:a", None, f"{prefix}:a"], pa.string())
        result = written(sink, batch.set_column(batch.schema.get_field_index("stream"), "stream", streams))
        [refused] = result.rejected
        assert (refused.error.code, refused.error.where) == ("sink.unroutable", "public.orders at 0/1")
        assert prefix + ":${after.n}" in refused.error.message
        assert [json.loads(record)["seq"] for record in records(redis, f"{prefix}:a")] == [0, 2]

    def test_maxlen(self, redis: RedisServer) -> None:
        exact = sink_of(redis, stream=new_name(), maxlen=10, trim="exact")
        about = sink_of(redis, stream=new_name(), maxlen=10)
        for sink in (exact, about):
            deliver(sink, versions(0, keys=1, rounds=1000))
        assert [json.loads(record)["n"] for record in records(redis, exact.stream or "")] == list(range(990, 1000))
        assert 10 <= len(records(redis, about.stream or "")) < 500
        assert json.loads(records(redis, about.stream or "")[-1])["n"] == 999


@pytest.mark.usefixtures("small_pieces")
class TestOnce:
    """Attempts that end anywhere."""

    @pytest.mark.parametrize("seed", range(5))
    def test_attempts_that_get_so_far_add_up(self, redis: RedisServer, seed: int) -> None:
        """Several records of one change, batches that split them, streams by template."""
        chance, prefix = random.Random(seed), new_name()
        sink = sink_of(redis, stream=prefix + ":${after.n}")
        changes = [Change(seq, seq, n) for seq in range(40) for n in chance.choices(range(3), k=chance.randrange(1, 6))]
        while True:
            limit = chance.randrange(10, 2 * len(changes))
            attempt = Attempt(sink, changes, chance, limit)
            try:
                written(sink, *attempt.batches)
            except SinkError:
                continue
            if limit >= len(changes):
                break
        for n in range(3):
            expected = [change.value for change in changes if change.n == n]
            assert records(redis, f"{prefix}:{n}") == expected

    def test_a_call_on_a_mark_that_is_not_there_writes_nothing(self, redis: RedisServer) -> None:
        sink, stream = sink_of(redis, stream=new_name()), new_name()
        with pytest.raises(SinkError) as failure, connected(sink.access(DELIVERY), "x") as servers:
            servers.run(
                ADD_ENTRIES, [Call((f"{stream}:mark", stream, f"{stream}:late"), [3, 4, "", 0, 3, 2, "a", "b"])]
            )
        assert decide(failure.value) is Action.RETRY
        assert entries(redis, stream) == []

    def test_a_late_call_of_an_earlier_attempt_adds_nothing(self, redis: RedisServer) -> None:
        sink, stream = sink_of(redis, stream=new_name()), new_name()
        one = Call((f"{stream}:mark", stream, f"{stream}:late"), [0, 1, "", 0, 0, 2, "n", "0"])
        both = Call((f"{stream}:mark", stream, f"{stream}:late"), [0, 2, "", 0, 0, 2, "n", "0", 1, 2, "n", "1"])
        with connected(sink.access(DELIVERY), "x") as servers:
            servers.run(ADD_ENTRIES, [both, one, both])
            assert servers.numbers([f"{stream}:mark"]) == [2]
        assert entries(redis, stream) == [{"n": "0"}, {"n": "1"}]

    def test_a_batch_that_takes_too_long_goes_on_where_it_is(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name(), batch_timeout_secs=1e-9)
        changes = versions(0, keys=4, rounds=6)
        for _ in range(3):  # there are four windows
            with pytest.raises(SinkError) as failure:
                deliver(sink, changes)
            assert failure.value.code == "sink.unavailable"
        deliver(sink, changes)
        assert records(redis, sink.stream or "") == [change.value for change in changes]

    def test_a_refused_record_that_a_later_attempt_can_write_is_there_once(self, redis: RedisServer) -> None:
        """The attempts between do not repeat the others, nor does it come twice. One change has several records."""
        stream = new_name()
        sink = sink_of(redis, stream=stream + "${after.n}")
        rows = [Change(seq, seq, 0) for seq in range(20) for _ in range(2)]
        ids = [str(n) for n in range(len(rows))]
        lost = {3, 20, 39}

        def attempt(*without: int) -> Written:
            batch = with_ids(batch_for(sink, rows), ids)
            names: Any = pa.array([None if n in without else stream for n in range(len(rows))], pa.string())
            return written(sink, batch.set_column(batch.schema.get_field_index("stream"), "stream", names))

        def arrived() -> list[int]:
            return [int(entry["event_id"]) for entry in entries(redis, stream)]

        assert len(attempt(*lost).rejected) == 3
        for without in ([20], [20], [], []):
            attempt(*without)
            assert sorted(arrived()) == [n for n in range(len(rows)) if n not in without]
        assert arrived() == [*(n for n in range(len(rows)) if n not in lost), 3, 39, 20]
        sink.commit(DELIVERY, Span(LOG, 0, 20), [""])
        with client_of(redis) as client:
            assert list(client.scan_iter(f"*{sink.id}*:refused")) == []

    def test_dead_letters_are_added_once_and_move_no_mark(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        changes = versions(0, keys=1, rounds=6)
        deliver(sink, [change for change in changes if change.seq not in (2, 4)])
        for letters in (changes[2:3], changes[2:5:2], changes[4:5]):
            span = Span(LOG, letters[0].seq, letters[-1].seq + 1, tuple(each.row()["event_id"] for each in letters))
            assert not sink.open(DELIVERY, span, 0).write(iter([batch_for(sink, letters)])).rejected
            sink.commit(DELIVERY, span, [""])
        assert [json.loads(record)["n"] for record in records(redis, sink.stream or "")] == [0, 1, 3, 5, 2, 4]
        assert sink.mark(DELIVERY, LOG) == 6
        ahead = Span(LOG, 9, 10, ("x",))
        sink.open(DELIVERY, ahead, 0).write(iter([batch_for(sink, [Change(9, 0, 9)])]))
        deliver(sink, [*changes, Change(6, 0, 6)])
        assert [json.loads(record)["n"] for record in records(redis, sink.stream or "")][-2:] == [9, 6]

    def test_a_deleted_checkpoint_repeats_nothing(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        changes = versions(0, keys=2, rounds=4)
        deliver(sink, changes)
        write(sink, changes)
        assert len(records(redis, sink.stream or "")) == len(changes)
        written(sink.model_copy(update={"id": "another"}), batch_for(sink, changes))
        assert len(records(redis, sink.stream or "")) == 2 * len(changes), "another sink has marks of its own"


class Attempt:
    """What an attempt gets: a part of the changes, in batches that may split a change."""

    def __init__(self, sink: RedisSink, changes: list[Change], chance: random.Random, limit: int) -> None:
        whole = batch_for(sink, changes[:limit])
        cuts = sorted({0, whole.num_rows, *chance.choices(range(whole.num_rows), k=4)})
        self.batches = [whole.slice(a, b - a) for a, b in pairwise(cuts)]
        if limit < len(changes):  # the last change may lack records: it is not among those that are sent
            self.batches = [_below(batch, changes[limit].seq) for batch in self.batches]


def _below(batch: pa.RecordBatch, seq: int) -> pa.RecordBatch:
    return batch.slice(0, int(np.searchsorted(batch.column("seq").to_numpy(), seq)))


class TestTrouble:
    def test_a_server_that_forgot_the_script_is_told_again(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        changes = versions(0, keys=1, rounds=4)
        deliver(sink, changes[:2])
        with client_of(redis) as client:
            client.script_flush()
        deliver(sink, changes)
        assert records(redis, sink.stream or "") == [change.value for change in changes]

    @pytest.mark.parametrize(
        ("setting", "wrong", "right"), [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")]
    )
    def test_a_server_that_takes_no_writes_now_is_a_wait(
        self, redis: RedisServer, setting: str, wrong: str, right: str
    ) -> None:
        sink = sink_of(redis, stream=new_name())
        changes = versions(0, keys=1, rounds=3)
        deliver(sink, changes[:1])
        with client_of(redis) as client:
            client.config_set(setting, wrong)
            try:
                with pytest.raises(SinkError) as failure:
                    write(sink, changes)
            finally:
                client.config_set(setting, right)
        assert failure.value.code == "sink.unavailable"
        deliver(sink, changes)
        assert records(redis, sink.stream or "") == [change.value for change in changes]

    def test_a_key_that_is_no_stream_stops(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        with client_of(redis) as client:
            client.set(sink.stream or "", "text")
        with pytest.raises(SinkError) as failure:
            deliver(sink, [Change(0, 0, 0)])
        assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)

    def test_a_server_that_is_killed_keeps_what_it_acknowledged(self) -> None:
        with RedisServer() as server:
            sink = sink_of(server, stream=new_name())
            changes = versions(0, keys=3, rounds=10)
            write(sink, changes[:12])
            server.kill()
            with pytest.raises(SinkError) as failure:
                write(sink, changes)
            assert failure.value.code == "sink.unavailable"
            server.start()
            deliver(sink, changes)
            assert records(server, sink.stream or "") == [change.value for change in changes]

    def test_a_replica_is_a_wait(self) -> None:
        with RedisServer() as server:
            sink = sink_of(server, stream=new_name())
            with client_of(server) as client:
                client.replicaof("127.0.0.1", 1)
                with pytest.raises(SinkError) as failure:
                    write(sink, [Change(0, 0, 0)])
                assert failure.value.code == "sink.unavailable"
                client.replicaof("NO", "ONE")
            deliver(sink, [Change(0, 0, 0)])
            assert len(records(server, sink.stream or "")) == 1

    def test_a_frozen_server_is_a_wait_and_what_it_does_later_is_not_repeated(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name(), send_timeout_secs=0.3)
        changes = versions(0, keys=2, rounds=5)
        deliver(sink, changes[:2])

        def batches() -> Iterator[pa.RecordBatch]:
            yield batch_for(sink, changes[2:5])
            os.kill(redis.pid, signal.SIGSTOP)
            yield batch_for(sink, changes[5:])

        try:
            with pytest.raises(SinkError) as failure:
                sink.open(DELIVERY, span_of(changes), 0).write(batches())
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        assert failure.value.code == "sink.unavailable"
        deliver(sink, changes)
        assert records(redis, sink.stream or "") == [change.value for change in changes]

    def test_a_run_that_ends_does_not_wait_long(self) -> None:
        sink = RedisSink(id="x", uri=Dsn(NOBODY), stream="s", send_timeout_secs=3600, connect_timeout_secs=3600)
        access = sink.access(replace(DELIVERY, ending=lambda: True))
        assert max(access.connect_timeout, access.send_timeout) <= 2

    def test_a_client_is_kept_until_it_fails(self, redis: RedisServer) -> None:
        sink = sink_of(redis, stream=new_name())
        access = sink.access(DELIVERY)
        sink.prepare(DELIVERY)
        kept = connection._open[access]
        deliver(sink, [Change(0, 0, 0)])
        assert connection._open[access] is kept
        with pytest.raises(SinkError), connected(access, "x"):
            raise SinkError("sink.unavailable", "gave up")
        assert access not in connection._open


class TestDocument:
    def test_the_example_of_a_fan_out(self) -> None:
        """As those write it who come from elsewhere."""
        from tailrace.spec.later import SINK

        config = yaml.safe_load(
            """
            id: cache-redis
            uri: redis://localhost:6379
            stream: orders:cache
            envelope:
              type: native
            required: false
            """
        )
        sink = RedisSink.from_document(config)
        assert (sink.stream, sink.required, sink.mode) == ("orders:cache", False, "stream")
        assert "json" in SINK["redis"]["encoding"]

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({}, "`stream`"),
            ({"stream": "s", "ttl": "1h"}, "`ttl`"),
            ({"mode": "set"}, "`key`"),
            ({"mode": "set", "key": "${key.id}", "stream": "s"}, "`stream`"),
            ({"mode": "hset", "key": "${key.id}", "maxlen": 5}, "`maxlen`"),
            ({"mode": "del", "key": "${after.id}"}, "after.id"),
            ({"mode": "set", "key": "o:${op}"}, "`op`"),
            ({"stream": "s", "uri": "http://h"}, "redis://"),
            ({"stream": "s", "uri": "redis://"}, "no host"),
            ({"stream": "s", "uri": "redis://h:x"}, "port"),
            ({"stream": "s", "uri": "redis://h/x"}, "number"),
            ({"stream": "s", "uri": "redis://h?db=1"}, "options"),
            ({"stream": "s", "uri": "redis://h,i"}, "several hosts"),
            ({"stream": "s", "uri": "redis://h/1", "cluster": True}, "cluster"),
            ({"stream": "s", "uri": "redis+sentinel://h"}, "service"),
            ({"stream": "s", "sentinel": {"password": "p"}}, "Sentinels"),
            ({"stream": "s", "tls": {"verify": "none"}}, "TLS"),
            ({"stream": "s", "uri": "redis://u:p@h", "password": "p"}, "beside"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(ValidationError) as failure:
            RedisSink.from_document({"id": "cache", "uri": "redis://h", **options})
        [error] = failure.value.errors()
        assert word in error["msg"]
        assert error["ctx"]["hint"]

    @pytest.mark.parametrize(
        ("uri", "hosts", "rest"),
        [
            ("redis://h", [("h", 6379)], (False, None, 0, None, None)),
            ("rediss://u:p%40%2F@[::1]:7/3", [("::1", 7)], (True, None, 3, "u", "p@/")),
            ("redis://:p@h", [("h", 6379)], (False, None, 0, None, "p")),
            ("redis+sentinel://a,b:1/shop", [("a", 26379), ("b", 1)], (False, "shop", 0, None, None)),
            ("rediss+sentinel://u:p@a/shop/2", [("a", 26379)], (True, "shop", 2, "u", "p")),
        ],
    )
    def test_addresses(self, uri: str, hosts: list[tuple[str, int]], rest: tuple[object, ...]) -> None:
        found = RedisSink(id="x", uri=Dsn(uri), stream="s", cluster=len(hosts) > 1 and "sentinel" not in uri).address
        assert list(found.hosts) == hosts
        assert (found.encrypted, found.service, found.database, found.username, found.password) == rest

    def test_passwords_are_never_shown(self) -> None:
        sink = RedisSink.from_document({"id": "x", "stream": "s", "uri": "redis://u:hunter2@127.0.0.1:1"})
        other = RedisSink.from_document(
            {
                "id": "x",
                "stream": "s",
                "uri": "redis+sentinel://127.0.0.1:1/shop",
                "password": "hunter2",
                "sentinel": {"password": "hunter3"},
            }
        )
        for each in (sink, other):
            shown = repr(each) + str(each) + each.model_dump_json() + repr(each.open(DELIVERY, Span("log", 0, 1), 0))
            assert "hunter" not in shown
            with pytest.raises(SinkError) as failure:
                each.prepare(DELIVERY)
            assert "hunter" not in str(failure.value) + failure.value.hint


class TestDoctor:
    def states(self, sink: RedisSink) -> dict[str, str]:
        return {check.name: check.state for check in sink.check(Subject("sink"), DELIVERY)}

    def test_a_server_that_keeps_everything(self, redis: RedisServer) -> None:
        with client_of(redis) as client:
            before = client.dbsize()
            assert self.states(sink_of(redis, stream=new_name())) == dict.fromkeys(
                ("server", "durability", "eviction"), "ok"
            )
            assert client.dbsize() == before

    def test_a_server_that_forgets(self, redis: RedisServer) -> None:
        with client_of(redis) as client:
            client.config_set("appendfsync", "everysec")
            client.config_set("maxmemory-policy", "allkeys-lru")
            try:
                found = self.states(sink_of(redis, stream=new_name()))
            finally:
                client.config_set("appendfsync", "always")
                client.config_set("maxmemory-policy", "noeviction")
        assert found == {"server": "ok", "durability": "warn", "eviction": "warn"}

    def test_no_server(self) -> None:
        sink = RedisSink(id="x", uri=Dsn(NOBODY), stream="s")
        assert self.states(sink) == {"server": "fail", "durability": "skipped"}
