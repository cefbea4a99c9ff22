"""Topics: whether the cluster is there, and making the topics it lacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.config import redact
from tailrace.contracts import never
from tailrace.errors import ConfigError, SinkError

Settings = dict[str, bool | int | float | str]

LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a cluster that says nothing."""
_LOOK_S = 0.1
SILENCE = logging.Logger("librdkafka", logging.CRITICAL + 1)
"""What librdkafka would print: everything that matters is raised."""

_PRODUCER_ONLY = (
    "acks",
    "batch.",
    "compression.",
    "delivery.",
    "enable.",
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
)
"""Starts of the settings that an admin client has no use for and warns about."""

_NO_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
HEALS = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY,
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.INVALID_PRODUCER_EPOCH,
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
}
"""What passes by itself or with a new producer. librdkafka's `retriable` flag is set in transactions only."""


@dataclass(frozen=True)
class Topics:
    """A cluster's topics. `make` is (partitions, replicas) of missing ones, None to make none."""

    sink: str
    settings: Settings = field(repr=False)
    make: tuple[int, int] | None
    patience: float
    ending: Callable[[], bool] = never

    def ensure(self, names: Iterable[str]) -> None:
        """Return when the cluster answers and every topic is there, as far as that is ours to do. librdkafka cannot be
        interrupted: where the run ends meanwhile, the thread that waits for it is left behind."""
        outcome: Future[None] = Future()

        def ask() -> None:
            try:
                self._ensure(names)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        threading.Thread(target=ask, name=f"topics/{self.sink}", daemon=True).start()
        while not outcome.done() and not self.ending():
            wait([outcome], _LOOK_S)
        if not wait([outcome], LAST_WAIT_S).done:
            raise gave_up("the cluster does not answer, and the run ends", self.sink)
        outcome.result()

    def _ensure(self, names: Iterable[str]) -> None:
        refusals: list[KafkaError] = []
        admin = self._admin(refusals)
        try:
            known = admin.list_topics(timeout=self.patience).topics
            missing = [name for name in names if name not in known]
            if missing and self.make is not None:
                self._create(admin, missing)
        except KafkaException as error:
            login = next((found for found in refusals if found.code() in _NO_LOGIN), None)
            raise kafka_error(login or error.args[0], "the cluster does not answer", self.sink) from error

    def _admin(self, refusals: list[KafkaError]) -> AdminClient:
        settings: dict[str, Any] = {
            name: value for name, value in self.settings.items() if not name.startswith(_PRODUCER_ONLY)
        }
        try:
            return AdminClient(settings | {"error_cb": refusals.append}, logger=SILENCE)
        except (KafkaException, ValueError) as error:
            raise bad_settings(error, self.sink) from None

    def _create(self, admin: AdminClient, names: list[str]) -> None:
        assert self.make is not None
        partitions, replicas = self.make
        wanted = [NewTopic(name, partitions, replicas) for name in names]
        for made in admin.create_topics(wanted, operation_timeout=self.patience).values():
            try:
                made.result(timeout=self.patience)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise


def gave_up(text: str, where: str) -> SinkError:
    """Nobody answers: it is tried again, perhaps by the next run."""
    hint = "check that the brokers run and can be reached; the sink tries again by itself"
    return SinkError("sink.unavailable", text, hint=hint, where=where)


def kafka_error(error: KafkaError, what: str, where: str) -> SinkError:
    """The error for what librdkafka says: wait, or repair."""
    text = f"{what}: {redact(error.str())}"
    if error.code() in _NO_LOGIN:
        hint = "check the security, TLS and SASL settings in `client_conf`, and the user's rights"
        return SinkError("sink.refused", text, hint=hint, where=where)
    if error.code() in HEALS:
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
