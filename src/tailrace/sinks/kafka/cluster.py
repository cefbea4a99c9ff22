"""A cluster and how to reach it: librdkafka's clients, and what its errors mean for a sink."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tailrace.config import redact
from tailrace.contracts import never
from tailrace.errors import ConfigError, SinkError
from tailrace.sinks.kafka.login import Login

Settings = dict[str, bool | int | float | str]

LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a cluster that says nothing."""
SILENCE = logging.Logger("librdkafka", logging.CRITICAL + 1)
"""What librdkafka would print: everything that matters is raised."""

_PRODUCER_ONLY = (
    "acks",
    "batch.",
    "compression.",
    "delivery.",
    "enable.gapless",
    "enable.idempotence",
    "linger.",
    "max.in.flight",
    "message.send.max.retries",
    "message.timeout.ms",
    "partitioner",
    "queue.",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "sticky.",
    "transaction",
)
"""Starts of the settings that other clients have no use for and warn about."""

NO_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
"""Another producer with the same transactional id began, or the cluster gave the transaction up."""
HEALS = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY,
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._STATE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNKNOWN_PRODUCER_ID,
    *FENCED,
}
"""What passes by itself or with a new producer. librdkafka's `retriable` flag is set in transactions only."""


@dataclass(frozen=True)
class Cluster:
    """What a sink's clients share. `settings` are librdkafka's, secrets in the clear."""

    sink: str
    settings: Settings = field(repr=False)
    login: Login | None
    patience: float
    """Seconds without an answer after which an attempt is given up."""
    ending: Callable[[], bool] = never

    @cached_property
    def identity(self) -> str:
        """The same for clusters whose clients may stand for each other."""
        login = None if self.login is None else self.login.model_dump_json()
        return json.dumps([self.settings, login], sort_keys=True)

    def producer(self, **changed: bool | int | str) -> Producer:
        """A producer that reports failures only; `changed` are settings with `_` for the dots."""
        settings = self.settings | {name.replace("_", "."): value for name, value in changed.items()}
        made: Producer = self._client(Producer, {**settings, "delivery.report.only.error": True})
        return made

    def admin(self, refusals: list[KafkaError]) -> AdminClient:
        """`refusals` gets what librdkafka only mentions, such as a login that was refused."""
        made: AdminClient = self._client(AdminClient, {**self._shared(), "error_cb": refusals.append})
        return made

    def consumer(self) -> Consumer:
        """Reads what is committed, from partitions it is told to read; tells where a partition ends."""
        own = {"group.id": self.settings["client.id"], "enable.auto.commit": False, "enable.partition.eof": True}
        committed = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        hasty = {"fetch.wait.max.ms": 5, "topic.metadata.propagation.max.ms": 0, "allow.auto.create.topics": False}
        made: Consumer = self._client(Consumer, {**self._shared(), **own, **committed, **hasty})
        return made

    def _shared(self) -> Settings:
        return {name: value for name, value in self.settings.items() if not name.startswith(_PRODUCER_ONLY)}

    def _client(self, kind: Any, settings: dict[str, Any]) -> Any:
        if self.login is not None:
            settings = settings | {"oauth_cb": self.login.tokens(self.sink)}
        try:
            return kind(settings, logger=SILENCE)
        except (KafkaException, ValueError) as error:
            raise bad_settings(error, self.sink) from None

    def gives_up(self, since: float) -> float | None:
        """The seconds waited since `since` (`time.monotonic()`), where that is too long; sooner where the run ends."""
        waited = time.monotonic() - since
        return waited if waited > self.patience or (waited > LAST_WAIT_S and self.ending()) else None


def gave_up(text: str, where: str) -> SinkError:
    """Nobody answers: it is tried again, perhaps by the next run."""
    hint = "check that the brokers run and can be reached; the sink tries again by itself"
    return SinkError("sink.unavailable", text, hint=hint, where=where)


def kafka_error(error: KafkaError, what: str, where: str) -> SinkError:
    """The error for what librdkafka says: wait, or repair."""
    text = f"{what}: {redact(error.str())}"
    if error.code() in NO_LOGIN:
        hint = "check the security, TLS and SASL settings in `client_conf`, and the user's rights"
        return SinkError("sink.refused", text, hint=hint, where=where)
    if error.code() in HEALS or error.retriable():
        return gave_up(text, where)
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        hint = "raise `message.max.bytes` in `client_conf` and `max.message.bytes` of the topic"
        return SinkError("sink.rejected", text, hint=hint, where=where)
    return SinkError("sink.rejected", text, hint="change the topic or the broker so that it accepts it", where=where)


def bad_settings(error: Exception, where: str) -> ConfigError:
    """What librdkafka has against `client_conf`. It may quote a value, so its text is redacted."""
    reason = error.args[0]
    text = redact(reason.str() if isinstance(reason, KafkaError) else str(reason))
    return ConfigError(
        "config.invalid_value", f"client_conf: {text}", hint="see librdkafka's CONFIGURATION.md", where=where
    )
