"""Where a Redis sink's servers may be: behind TLS and ACL, several as a cluster, or known to a Sentinel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.crc import key_slot

from tailrace.contracts import Span, Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.redis import RedisSink
from tailrace.sinks.redis.slots import SLOTS, beside, slot_of, tag_of
from tailrace.testing.servers import RedisServer
from tailrace.testing.servers.redis import RedisSentinel, cluster_member
from tailrace.testing.suites.sinks import DELIVERY, LOG, Change, batch_for, deliver, versions, write
from tailrace.testing.waiting import eventually
from tests.capture.postgres.authority import Authority, Certificate
from tests.sinks.redis_contents import client_of, new_name, records, sink_of
from tests.sinks.tls_front import TlsFront


def refusal(sink: RedisSink) -> SinkError:
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    [server, *_] = sink.check(Subject("sink"), DELIVERY)
    assert server.state == "fail"
    return failure.value


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Certificate:
    return authority.sign("client")


@pytest.fixture(scope="module")
def front(redis: RedisServer, authority: Authority) -> Iterator[TlsFront]:
    with TlsFront(redis.port, authority, authority.sign("server", "DNS:localhost")) as front:
        yield front


class TestTls:
    def sink(self, front: TlsFront, client: Certificate | None, host: str = "localhost", **tls: Any) -> RedisSink:
        own = {} if client is None else {"cert": str(client.cert), "key": str(client.key)}
        options = {"uri": f"rediss://{host}:{front.port}", "tls": {**own, **tls}}
        return RedisSink.from_document({"id": new_name(), "stream": new_name(), **options})

    def test_records_arrive(
        self, redis: RedisServer, front: TlsFront, client: Certificate, authority: Authority
    ) -> None:
        sink = self.sink(front, client, root_cert=str(authority.root))
        deliver(sink, [Change(0, 0, 0)])
        assert len(records(redis, sink.stream or "")) == 1

    @pytest.mark.parametrize(("verify", "host"), [("ca", "127.0.0.1"), ("none", "127.0.0.1"), ("full", "localhost")])
    def test_what_is_verified(
        self, front: TlsFront, client: Certificate, authority: Authority, verify: str, host: str
    ) -> None:
        trusted = {} if verify == "none" else {"root_cert": str(authority.root)}
        self.sink(front, client, host, verify=verify, **trusted).prepare(DELIVERY)

    def test_another_host_name(self, front: TlsFront, client: Certificate, authority: Authority) -> None:
        error = refusal(self.sink(front, client, "127.0.0.1", root_cert=str(authority.root)))
        assert (error.code, decide(error)) == ("sink.refused", Action.STOP)
        assert "tls" in error.hint

    def test_another_authority(self, front: TlsFront, client: Certificate, tmp_path: Path) -> None:
        stranger = Authority(tmp_path, "stranger")
        assert refusal(self.sink(front, client, root_cert=str(stranger.root))).code == "sink.refused"

    def test_no_certificate(self, front: TlsFront, authority: Authority) -> None:
        """The server says why and ends the connection; which of the two the client sees first is chance."""
        error = refusal(self.sink(front, None, root_cert=str(authority.root)))
        assert error.code in ("sink.refused", "sink.unavailable")
        assert "`tls`" in error.hint

    def test_a_server_without_tls(self, redis: RedisServer) -> None:
        sink = RedisSink.from_document({"id": "x", "uri": f"rediss://127.0.0.1:{redis.port}", "stream": "s"})
        assert refusal(sink.model_copy(update={"send_timeout_secs": 0.3})).code == "sink.unavailable"

    def test_files_that_are_not_there(self, front: TlsFront) -> None:
        error = refusal(self.sink(front, None, root_cert="/nowhere/ca.pem"))
        assert (error.code, decide(error)) == ("sink.refused", Action.STOP)


LEAST = "~{stream} ~tailrace:* -@all +ping +get +set +del +sadd +smembers +xadd +evalsha +eval"
"""The rule that docs/guides/redis.md gives."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.users = [
        "default on >root ~* &* +@all",
        "shop on >s3cret@/ " + LEAST.format(stream="shop:*"),
        "reader on >r ~* +@read +ping",
        "half on >h ~* +@all -xadd",
    ]
    with server:
        yield server


class TestUsers:
    def sink(self, server: RedisServer, **options: Any) -> RedisSink:
        return sink_of(server, **{"stream": f"shop:{new_name()}", **options})

    def count(self, server: RedisServer, sink: RedisSink) -> int:
        with Redis(port=server.port, password="root") as client:
            found: Any = client.xlen(sink.stream or "")
        return int(found)

    @pytest.mark.parametrize("way", ["keys", "uri", "default"])
    def test_a_login(self, server: RedisServer, way: str) -> None:
        options = {
            "keys": {"username": "shop", "password": "s3cret@/"},
            "uri": {"uri": f"redis://shop:s3cret%40%2F@127.0.0.1:{server.port}"},
            "default": {"password": "root"},
        }[way]
        sink = self.sink(server, **options)
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=2, rounds=2))
        deliver(sink, versions(0, keys=2, rounds=2))
        assert self.count(server, sink) == 4

    def test_the_guide_has_the_rule(self) -> None:
        guide = (Path(__file__).parents[2] / "docs" / "guides" / "redis.md").read_text()
        assert LEAST.format(stream="orders:*") in guide

    @pytest.mark.parametrize(
        "options", [{}, {"username": "shop", "password": "wrong"}, {"username": "nobody", "password": "s3cret@/"}]
    )
    def test_a_wrong_login_stops(self, server: RedisServer, options: dict[str, str]) -> None:
        error = refusal(self.sink(server, **options))
        assert (error.code, decide(error)) == ("sink.refused", Action.STOP)
        assert "password" in error.hint
        assert "wrong" not in str(error)

    @pytest.mark.parametrize(
        "options",
        [
            {"username": "reader", "password": "r"},
            {"username": "half", "password": "h"},
            {"username": "shop", "password": "s3cret@/", "stream": "elsewhere"},
        ],
    )
    def test_a_user_without_the_right_stops_and_moves_no_mark(
        self, server: RedisServer, options: dict[str, str]
    ) -> None:
        sink = self.sink(server, **options)
        with pytest.raises(SinkError) as failure:
            write(sink, [Change(0, 0, 0)])
        assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
        assert "ACL" in failure.value.hint
        deliver(sink.model_copy(update={"username": None, "password": type(sink.password)("root")}), [Change(0, 0, 0)])  # type: ignore[misc]
        assert self.count(server, sink) == 1

    def test_a_doctor_who_may_not_ask(self, server: RedisServer) -> None:
        sink = self.sink(server, username="shop", password="s3cret@/")
        assert [check.state for check in sink.check(Subject("sink"), DELIVERY)] == ["ok", "skipped"]


class TestSentinel:
    def test_the_master_is_found_and_found_anew(self) -> None:
        """The old master dies; what its replica has is not repeated, and what follows is there once."""
        with ExitStack() as servers:
            master = servers.enter_context(RedisServer())
            replica = servers.enter_context(RedisServer(replicaof=f"127.0.0.1 {master.port}"))
            with client_of(replica) as client:
                eventually(lambda: _of(client, "replication")["master_link_status"] == "up")
            sentinel = servers.enter_context(RedisSentinel(master))
            with client_of(sentinel) as client:
                eventually(lambda: _of(client, "sentinel")["master0"]["slaves"] == 1)
            uri = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/shop"
            sink = sink_of(master, uri=uri, stream=new_name())
            changes = versions(0, keys=2, rounds=5)
            sink.prepare(DELIVERY)
            deliver(sink, changes[:4])
            with client_of(master) as client:
                client.wait(1, 5000)
            master.kill()
            eventually(lambda: _delivered(sink, changes), 30)
            assert records(replica, sink.stream or "") == [change.value for change in changes]

    def test_a_service_that_nobody_knows(self, redis: RedisServer) -> None:
        with RedisSentinel(redis) as sentinel:
            uri = f"redis+sentinel://127.0.0.1:{sentinel.port}/another"
            error = refusal(sink_of(redis, uri=uri, stream="s"))
        assert (error.code, decide(error)) == ("sink.unavailable", Action.RETRY)
        assert "another" in error.message

    def test_sentinels_with_a_login(self, redis: RedisServer) -> None:
        with RedisSentinel(redis) as sentinel:
            with client_of(sentinel) as client:
                client.acl_setuser("default", enabled=True, passwords=["+watch"], nopass=False)
            uri = f"redis+sentinel://127.0.0.1:{sentinel.port}/shop"
            sink_of(redis, uri=uri, stream="s", sentinel={"password": "watch"}).prepare(DELIVERY)
            for login in ({}, {"sentinel": {"password": "wrong"}}):
                assert refusal(sink_of(redis, uri=uri, stream="s", **login)).code == "sink.refused"


def _of(client: Redis, section: str) -> dict[str, Any]:
    found: Any = client.info(section)
    return dict(found)


def _delivered(sink: RedisSink, changes: list[Change]) -> bool:
    try:
        deliver(sink, changes)
    except SinkError as error:
        assert error.code == "sink.unavailable"
        return False
    return True


@pytest.fixture(scope="module")
def members() -> Iterator[list[RedisServer]]:
    with ExitStack() as servers:
        members = [servers.enter_context(cluster_member()) for _ in range(3)]
        introduce(members)
        yield members


class TestCluster:
    def sink(self, members: list[RedisServer], **options: Any) -> RedisSink:
        uri = "redis://" + ",".join(f"127.0.0.1:{port}" for port in (1, members[0].port))
        return sink_of(members[0], **{"uri": uri, "cluster": True, **options})

    def everything(self, members: list[RedisServer], kind: str) -> dict[str, Any]:
        """The keys of all members, but for marks."""
        found: dict[str, Any] = {}
        for member in members:
            with closing(client_of(member)) as client:
                keys: Any = client.scan_iter(_type=kind)
                for key in keys:
                    if not key.startswith("tailrace:"):
                        found[key] = client.get(key) if kind == "string" else client.xrange(key)
        return found

    def test_streams_in_all_members(self, members: list[RedisServer]) -> None:
        prefix = new_name()
        for template in (f"{prefix}:${{after.id}}", f"{prefix}}}{{x}}:${{after.id}}"):
            sink = self.sink(members, stream=template)
            sink.prepare(DELIVERY)
            changes = versions(0, keys=20, rounds=5)
            write(sink, changes[:50])
            deliver(sink, changes)
            assert sink.mark(DELIVERY, LOG) == len(changes)
            found = self.everything(members, "stream")
            for id in range(20):
                stream = template.replace("${after.id}", str(id))
                assert [json.loads(fields["df-event"])["n"] for _, fields in found[stream]] == list(range(5))
        assert all(self.everything([member], "stream") for member in members)

    def test_keys_in_all_members(self, members: list[RedisServer]) -> None:
        sink = self.sink(members, mode="set", key=new_name() + ":${key.id}", truncates="keep")
        changes = versions(0, keys=100, rounds=3)
        for part in (changes[:250], changes, changes[100:]):
            sink.open(DELIVERY, Span(LOG, 0, 300), 0).write(iter([batch_for(sink, part)]))
        found = self.everything(members, "string")
        mine = {key: value for key, value in found.items() if key.startswith((sink.key or "").partition(":")[0])}
        assert {json.loads(value)["n"] for value in mine.values()} == {2}
        assert len(mine) == 100

    def test_a_member_that_dies_is_a_wait(self, members: list[RedisServer]) -> None:
        sink = self.sink(members, stream=f"{new_name()}:${{after.id}}")
        changes = versions(0, keys=20, rounds=5)
        deliver(sink, changes[:40])
        members[2].kill()
        with pytest.raises(SinkError) as failure:
            write(sink, changes)
        assert failure.value.code == "sink.unavailable"
        members[2].start()
        eventually(lambda: _delivered(sink, changes), 30)
        streams = {name: found for name, found in self.everything(members, "stream").items() if sink_has(sink, name)}
        assert [len(found) for found in streams.values()] == [5] * 20

    def test_what_does_not_fit(self, members: list[RedisServer], redis: RedisServer) -> None:
        alone = self.sink(members, uri=f"redis://127.0.0.1:{members[0].port}", cluster=False, stream="s:${after.id}")
        with pytest.raises(SinkError) as failure:
            write(alone, versions(0, keys=20, rounds=1))
        assert (failure.value.code, failure.value.hint) == ("sink.refused", "set cluster: true")
        error = refusal(sink_of(redis, cluster=True, stream="s"))
        assert (error.code, error.hint) == ("sink.refused", "leave out `cluster`")
        assert refusal(self.sink(members, uri="redis://127.0.0.1:1", stream="s")).code == "sink.unavailable"


def introduce(members: list[RedisServer]) -> None:
    """Make a cluster of them."""
    clients: list[Any] = [client_of(member) for member in members]
    share = SLOTS // len(members) + 1
    for number, client in enumerate(clients):
        first = number * share
        client.execute_command("CLUSTER ADDSLOTSRANGE", first, min(first + share, SLOTS) - 1)
        bus = members[0].settings["cluster-port"]
        client.execute_command("CLUSTER MEET", "127.0.0.1", members[0].port, bus)
    for client in clients:
        eventually(partial(knows_all, client))
        client.close()


def knows_all(client: Any) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", "3")


def sink_has(sink: RedisSink, name: str) -> bool:
    return name.startswith((sink.stream or "").partition(":")[0])


class TestSlots:
    @given(st.text(st.sampled_from("ab{}:ž"), max_size=12))
    def test_a_mark_lives_beside_its_stream(self, key: str) -> None:
        assert slot_of(key) == key_slot(key.encode())
        if key:
            assert key_slot(f"tailrace:{{{beside(key)}}}:shop/x/log:{key}".encode()) == key_slot(key.encode())

    def test_each_slot_has_a_tag(self) -> None:
        assert [key_slot(f"tailrace:{{{tag_of(slot)}}}:x".encode()) for slot in range(SLOTS)] == list(range(SLOTS))
