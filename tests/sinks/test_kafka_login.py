"""Logins and certificates of the Kafka sink, against a real broker; tokens of clouds by the shape of their calls."""

from __future__ import annotations

import base64
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.auth
import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from tailrace.config import Secret
from tailrace.contracts.checking import Subject
from tailrace.errors import SetupError, SinkError
from tailrace.sinks.kafka import KafkaSink
from tailrace.sinks.kafka.login import AwsMskIam, Google
from tailrace.testing.servers import SecureKafkaBroker
from tailrace.testing.servers.kafka_secure import Login
from tailrace.testing.suites.sinks import DELIVERY, deliver, versions
from tests.capture.postgres.authority import Authority
from tests.sinks.topics import topic, values

USER, PASSWORD = "alice", "wonderland"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "root")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[SecureKafkaBroker]:
    signed = authority.sign("localhost", "DNS:localhost,IP:127.0.0.1")
    keys = signed.cert.with_name("broker.pem")
    keys.write_text(signed.key.read_text() + signed.cert.read_text())
    with SecureKafkaBroker(Login(keys, authority.root, USER, PASSWORD)) as running:
        yield running


def sink_at(broker: SecureKafkaBroker, listener: str, **options: Any) -> KafkaSink:
    given = {"id": "bus", "brokers": broker.listener(listener), "topic": topic(), "send_timeout_secs": 10, **options}
    return KafkaSink.from_document(given)


def password(mechanism: str, password: str = PASSWORD) -> dict[str, object]:
    """Settings in `client_conf` as documents have them."""
    login = {"sasl.username": USER, "sasl.password": password}
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **login}


OAUTH = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "enable.sasl.oauthbearer.unsecure.jwt": True,
    "sasl.oauthbearer.config": "principal=alice",
}


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_login(broker: SecureKafkaBroker, authority: Authority, mechanism: str, exactly_once: bool) -> None:
    login = OAUTH if mechanism == "OAUTHBEARER" else password(mechanism)
    conf = {**login, "ssl.ca.location": str(authority.root)}
    sink = sink_at(broker, "sasl", client_conf=conf, exactly_once=exactly_once)
    assert {check.state for check in sink.check(Subject("sink"), DELIVERY)} == {"ok"}
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=1))
    assert len(values(broker, sink.topic)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_stops(broker: SecureKafkaBroker, authority: Authority, mechanism: str) -> None:
    conf = {**password(mechanism, "rabbit"), "ssl.ca.location": str(authority.root)}
    sink = sink_at(broker, "sasl", client_conf=conf)
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.refused"
    assert "rabbit" not in str(failure.value) + failure.value.hint
    first, *_ = sink.check(Subject("sink"), DELIVERY)
    assert (first.name, first.state) == ("brokers", "fail")


@pytest.mark.slow
def test_tls_and_who_signed(broker: SecureKafkaBroker, authority: Authority, tmp_path: Path) -> None:
    good = {"security.protocol": "SSL", "ssl.ca.location": str(authority.root)}
    sink = sink_at(broker, "tls", client_conf=good)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=1))
    assert len(values(broker, sink.topic)) == 2
    other = {**good, "ssl.ca.location": str(Authority(tmp_path, "somebody").root)}
    with pytest.raises(SinkError) as failure:
        sink_at(broker, "tls", client_conf=other).prepare(DELIVERY)
    assert failure.value.code == "sink.refused"


@pytest.mark.slow
def test_a_client_certificate(broker: SecureKafkaBroker, authority: Authority) -> None:
    mine = authority.sign("tailrace")
    files = {"ssl.certificate.location": str(mine.cert), "ssl.key.location": str(mine.key)}
    server = {"security.protocol": "SSL", "ssl.ca.location": str(authority.root)}
    sink = sink_at(broker, "mtls", client_conf={**server, **files}, exactly_once=True)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=1))
    assert len(values(broker, sink.topic)) == 2
    with pytest.raises(SinkError) as failure:
        sink_at(broker, "mtls", client_conf=server, send_timeout_secs=3).prepare(DELIVERY)
    assert failure.value.code in ("sink.refused", "sink.unavailable")


def unsigned(seconds: float = 60) -> tuple[str, float]:
    """A token that the broker takes without a signature."""
    expires = time.time() + seconds
    parts = ({"alg": "none"}, {"sub": USER, "iat": time.time(), "exp": expires})
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{body}.", expires


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What Amazon's library is asked for; it answers with tokens that the broker takes."""
    found: list[tuple[str, ...]] = []

    def answer(*asked: str) -> tuple[str, int]:
        found.append(asked)
        token, expires = unsigned()
        return token, int(expires * 1000)

    for name in ("generate_auth_token", "generate_auth_token_from_role_arn"):
        monkeypatch.setattr(MSKAuthTokenProvider, name, answer)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [False, True])
def test_tokens_by_call_are_taken_by_a_broker(
    broker: SecureKafkaBroker, authority: Authority, calls: list[tuple[str, ...]], exactly_once: bool
) -> None:
    conf = {"ssl.ca.location": str(authority.root)}
    oauth = {"type": "aws_msk_iam", "region": "eu-central-1"}
    sink = sink_at(broker, "sasl", client_conf=conf, oauth=oauth, exactly_once=exactly_once)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=1))
    assert len(values(broker, sink.topic)) == 2
    assert {check.state for check in sink.check(Subject("sink"), DELIVERY)} == {"ok"}
    assert set(calls) == {("eu-central-1",)}


def test_amazon_is_asked_for_a_role(calls: list[tuple[str, ...]]) -> None:
    login = AwsMskIam(region="eu-central-1", role_arn="arn:aws:iam::1:role/cdc")
    token, expires = login.tokens("bus")("")
    assert token.count(".") == 2
    assert 0 < expires - time.time() < 61
    assert set(calls) == {("eu-central-1", "arn:aws:iam::1:role/cdc", "tailrace")}


def test_amazon_signs_with_the_credentials_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    token, expires = AwsMskIam(region="eu-central-1").tokens("bus")("")
    signed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert signed.startswith("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert "X-Amz-Credential=AKIAEXAMPLE" in signed
    assert 600 < expires - time.time() <= 901


def test_google_gets_an_access_token_in_the_shape_of_a_jwt(monkeypatch: pytest.MonkeyPatch) -> None:
    expiry = datetime.datetime(2031, 1, 1, 12)
    refreshed: list[object] = []
    account = SimpleNamespace(
        token="ya29.x", expiry=expiry, service_account_email="cdc@example.com", refresh=refreshed.append
    )
    monkeypatch.setattr(google.auth, "default", lambda scopes: (account, "project"))
    token, expires = Google().tokens("bus")("")
    head, body, access = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    assert json.loads(head) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert json.loads(body)["sub"] == "cdc@example.com"
    assert json.loads(body)["exp"] == expires == expiry.replace(tzinfo=datetime.UTC).timestamp()
    assert access == b"ya29.x"
    assert refreshed


@pytest.mark.parametrize(
    ("oauth", "extra"), [({"type": "aws_msk_iam", "region": "r"}, "msk"), ({"type": "google"}, "google")]
)
def test_a_library_that_is_missing_is_named(oauth: dict[str, str], extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aws_msk_iam_sasl_signer", "google.auth"):
        monkeypatch.setitem(sys.modules, name, None)
    sink = KafkaSink.from_document({"id": "bus", "brokers": "127.0.0.1:1", "topic": "t", "oauth": oauth})
    with pytest.raises(SetupError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "setup.library_missing"
    assert f"tailrace[{extra}]" in failure.value.hint


def test_credentials_that_give_no_token_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(region: str) -> tuple[str, int]:
        raise RuntimeError("no credentials found")

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", refuse)
    oauth = {"type": "aws_msk_iam", "region": "r"}
    sink = KafkaSink.from_document({"id": "bus", "brokers": "127.0.0.1:1", "topic": "t", "oauth": oauth})
    with pytest.raises(SinkError, match="no credentials found") as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.refused"


def test_the_password_of_a_login_is_never_shown() -> None:
    conf = {**password("PLAIN"), "ssl.key.password": PASSWORD}
    sink = KafkaSink.from_document({"id": "bus", "brokers": "127.0.0.1:1", "topic": "t", "client_conf": conf})
    assert isinstance(sink.client_conf["sasl.password"], Secret)
    assert PASSWORD not in repr(sink) + sink.model_dump_json() + repr(sink.cluster(DELIVERY))
