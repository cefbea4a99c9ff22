"""Logins and TLS of the NATS sink, right and wrong, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import Delivery, Span, Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.nats import NatsSink
from tailrace.testing.servers import NatsServer
from tailrace.testing.suites.sinks import DELIVERY, Change, batch_for, deliver, span_of, versions, write
from tailrace.testing.waiting import eventually
from tests.capture.postgres.authority import Authority
from tests.sinks.nats_logins import Operator, new_user
from tests.sinks.nats_streams import NOBODY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nats")


@pytest.fixture(scope="module")
def users(folder: Path) -> Iterator[NatsServer]:
    """Lets in a user with a password, one with an nkey, and one who may not publish."""
    _, public = new_user(folder, "right")
    users = [
        {"user": "cdc", "password": "right"},
        {"nkey": public},
        {"user": "mute", "password": "right", "permissions": {"publish": {"allow": ["$JS.API.>"]}}},
        {"user": "deaf", "password": "right", "permissions": {"subscribe": {"deny": ["_INBOX.>"]}}},
    ]
    with NatsServer(settings={"authorization": {"users": users}}) as server:
        yield server


@pytest.fixture(scope="module")
def token() -> Iterator[NatsServer]:
    with NatsServer(settings={"authorization": {"token": "right"}}) as server:
        yield server


@pytest.fixture(scope="module")
def operator(folder: Path) -> Iterator[NatsServer]:
    made = Operator.new()
    (folder / "right.creds").write_text(made.credentials)
    (folder / "wrong.creds").write_text(Operator.new().credentials)
    (folder / "broken.creds").write_text("nothing\n")
    with NatsServer(settings=made.settings) as server:
        yield server


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "authority")


@pytest.fixture(scope="module")
def secure(folder: Path, authority: Authority) -> Iterator[NatsServer]:
    """Asks for certificates of both sides."""
    mine = authority.sign("server", "IP:127.0.0.1")
    files = {"cert_file": str(mine.cert), "key_file": str(mine.key), "ca_file": str(authority.root), "verify": True}
    with NatsServer(settings={"tls": files}) as server:
        yield server


def sink_of(server: NatsServer, **more: Any) -> NatsSink:
    name = uuid.uuid4().hex
    return NatsSink.from_document(
        {"id": "bus", "url": server.url, "subject": name, "stream": f"S{name}", "create_stream": {}, **more}
    )


def works(sink: NatsSink) -> None:
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=3, rounds=2))
    assert [check.state for check in sink.check(Subject("sink bus"), DELIVERY)] == ["ok", "ok"]


def refuses(sink: NatsSink) -> str:
    """Why, which is the same for every way in."""
    told = set()
    for attempt in (lambda: sink.prepare(DELIVERY), lambda: write(sink, versions(0, keys=1, rounds=1))):
        with pytest.raises(SinkError) as failure:
            attempt()
        assert failure.value.code == "sink.refused"
        assert decide(failure.value) is Action.STOP
        assert failure.value.hint
        told.add(str(failure.value))
    server, stream = sink.check(Subject("sink bus"), DELIVERY)
    assert (server.state, stream.state) == ("fail", "skipped")
    assert told == {server.detail}
    return told.pop()


def says(sink: NatsSink, code: str) -> str:
    """The server's reason, where it arrives: some have hung up before it does, and then it is a wait."""
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code in (code, "sink.unavailable")
    return str(failure.value) if failure.value.code == code else ""


def test_user_and_password(users: NatsServer) -> None:
    works(sink_of(users, username="cdc", password="right"))
    works(sink_of(users, url=users.url.replace("//", "//cdc:right@")))
    assert "Authorization Violation" in refuses(sink_of(users, username="cdc", password="wrong-one"))
    assert "Authorization Violation" in refuses(sink_of(users))
    told = refuses(sink_of(users, url=users.url.replace("//", "//cdc:wrong-one@")))
    assert "wrong-one" not in told


def test_token(token: NatsServer) -> None:
    works(sink_of(token, token="right"))
    assert "Authorization Violation" in refuses(sink_of(token, token="wrong"))


def test_nkey(users: NatsServer, folder: Path) -> None:
    works(sink_of(users, nkey_file=str(folder / "right.nk")))
    wrong, _ = new_user(folder, "wrong")
    assert "Authorization Violation" in refuses(sink_of(users, nkey_file=str(wrong)))
    (folder / "broken.nk").write_text("not a seed\n")
    refuses(sink_of(users, nkey_file=str(folder / "broken.nk")))
    assert "missing.nk" in refuses(sink_of(users, nkey_file=str(folder / "missing.nk")))


def test_credentials(operator: NatsServer, folder: Path) -> None:
    works(sink_of(operator, credentials_file=str(folder / "right.creds")))
    assert "Authorization Violation" in refuses(sink_of(operator, credentials_file=str(folder / "wrong.creds")))
    refuses(sink_of(operator, credentials_file=str(folder / "broken.creds")))
    assert "missing.creds" in refuses(sink_of(operator, credentials_file=str(folder / "missing.creds")))


def test_a_record_too_large_for_the_account_is_set_aside(operator: NatsServer, folder: Path) -> None:
    sink = sink_of(operator, credentials_file=str(folder / "right.creds"))
    sink.prepare(DELIVERY)
    changes = [Change(0, 0, 0), Change(1, 0, 1, text="x" * 20_001), Change(2, 0, 2)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    assert [rejected.error.code for rejected in written.rejected] == ["sink.rejected"]
    assert "20000" in written.rejected[0].error.message


def test_a_user_who_may_not_publish_is_told_so_at_once(users: NatsServer) -> None:
    sink = sink_of(users, username="mute", password="right", send_timeout_secs=60)
    sink.prepare(DELIVERY)
    with pytest.raises(SinkError, match=r"(?i)permissions violation for publish") as failure:
        write(sink, versions(0, keys=1, rounds=1))
    assert failure.value.code == "sink.refused"
    assert "_INBOX" in failure.value.hint


def test_a_user_who_may_not_hear_the_answers_is_told_so_at_once(users: NatsServer) -> None:
    sink = sink_of(users, username="deaf", password="right", send_timeout_secs=60, connect_timeout_secs=60)
    with pytest.raises(SinkError, match=r"(?i)permissions violation for subscription") as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.refused"
    with pytest.raises(SinkError, match=r"(?i)permissions violation for subscription"):
        write(sink, versions(0, keys=1, rounds=1))


def test_tls_with_certificates_of_both_sides(secure: NatsServer, authority: Authority, folder: Path) -> None:
    mine = authority.sign("client")
    own = {"cert": str(mine.cert), "key": str(mine.key)}
    root = {"root_cert": str(authority.root)}
    works(sink_of(secure, tls={**own, **root}))
    works(sink_of(secure, tls={**own, "verify": False}))
    works(sink_of(secure, url=secure.url.replace("nats:", "tls:"), tls={**own, **root}))
    assert "certificate verify failed" in refuses(sink_of(secure, tls=own))
    other = Authority(folder, "other")
    assert "certificate verify failed" in refuses(sink_of(secure, tls={**own, "root_cert": str(other.root)}))
    assert "client certificate" in refuses(sink_of(secure, tls=root))
    assert "client certificate" in refuses(sink_of(secure))
    stranger = other.sign("stranger")
    foreign = {"cert": str(stranger.cert), "key": str(stranger.key)}
    assert "alert unknown ca" in eventually(lambda: says(sink_of(secure, tls={**foreign, **root}), "sink.refused"))
    assert "missing.pem" in refuses(sink_of(secure, tls={**own, "root_cert": str(folder / "missing.pem")}))


def test_a_server_that_begins_with_tls(folder: Path, authority: Authority) -> None:
    mine = authority.sign("first", "IP:127.0.0.1")
    files = {"cert_file": str(mine.cert), "key_file": str(mine.key), "handshake_first": True}
    with NatsServer(settings={"tls": files}) as server:
        works(sink_of(server, tls={"root_cert": str(authority.root), "handshake_first": True}))


def test_nothing_goes_in_the_clear_where_tls_is_asked_for(users: NatsServer) -> None:
    ways: list[dict[str, Any]] = [{"tls": {}}, {"url": users.url.replace("nats:", "tls:")}]
    for more in ways:
        told = refuses(sink_of(users, username="cdc", password="right", **more))
        assert "does not offer TLS" in told


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"username": "u"}, "go together"),
        ({"password": "hunter2"}, "go together"),
        ({"token": "hunter2", "nkey_file": "a"}, "several logins"),
        ({"username": "u", "password": "hunter2", "credentials_file": "a"}, "several logins"),
        ({"create_stream": {}}, "name of the stream"),
        ({"url": "http://hunter2:hunter2@somewhere"}, "nats://"),
        ({"url": "nats://a:4222,,nats://b:4222"}, "nats://"),
        ({"subject": "orders.>"}, "wildcard"),
        ({"subject": "orders..new"}, "empty token"),
        ({"subject": "$JS.API.${source.table}"}, "server"),
        ({"stream": "a.b"}, "match"),
    ],
)
def test_what_cannot_work_is_refused_at_once(document: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word) as failure:
        NatsSink.from_document({"id": "bus", "url": NOBODY, "subject": "a", **document})
    assert "hunter2" not in str(failure.value)


def test_secrets_reach_the_client_and_nothing_else() -> None:
    sink = NatsSink.from_document(
        {"id": "bus", "url": "nats://u:hunter2@h:1", "subject": "a", "username": "u", "password": "hunter2"}
    )
    access = sink.access(Delivery("p", "t", "s"))
    assert dict(access.login)["password"] == "hunter2"
    shown = [repr(sink), str(sink), sink.model_dump_json(), repr(access), repr(sink.open(DELIVERY, Span("l", 0, 1), 0))]
    assert "hunter2" not in "".join(shown)


def test_one_of_several_servers_is_enough(users: NatsServer) -> None:
    works(sink_of(users, url=f"{NOBODY},{users.url}", username="cdc", password="right"))
