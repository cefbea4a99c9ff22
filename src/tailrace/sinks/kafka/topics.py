"""Topics: whether the cluster is there, and making the topics it lacks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.errors import SinkError
from tailrace.sinks.kafka.cluster import LAST_WAIT_S, NO_LOGIN, Cluster, gave_up, kafka_error

_LOOK_S = 0.1


@dataclass(frozen=True)
class Topics:
    """A cluster's topics. `make` is (partitions, replicas) of missing ones, None to make none; `config`: their own
    settings."""

    cluster: Cluster
    make: tuple[int, int] | None
    config: tuple[tuple[str, str], ...] = ()

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

        threading.Thread(target=ask, name=f"topics/{self.cluster.sink}", daemon=True).start()
        while not outcome.done() and not self.cluster.ending():
            wait([outcome], _LOOK_S)
        if not wait([outcome], LAST_WAIT_S).done:
            raise gave_up("the cluster does not answer, and the run ends", self.cluster.sink)
        outcome.result()

    def found(self) -> Any:
        """librdkafka's metadata of the cluster. Raises what `ensure` raises."""
        refusals: list[KafkaError] = []
        try:
            return self.cluster.admin(refusals).list_topics(timeout=self.cluster.patience)
        except KafkaException as error:
            raise self._trouble(error, refusals) from error

    def _ensure(self, names: Iterable[str]) -> None:
        refusals: list[KafkaError] = []
        admin = self.cluster.admin(refusals)
        try:
            known = admin.list_topics(timeout=self.cluster.patience).topics
            missing = [name for name in names if name not in known]
            if missing and self.make is not None:
                self._create(admin, missing, self.make)
        except KafkaException as error:
            raise self._trouble(error, refusals) from error

    def _trouble(self, error: KafkaException, refusals: list[KafkaError]) -> SinkError:
        login = next((found for found in refusals if found.code() in NO_LOGIN), None)
        return kafka_error(login or error.args[0], "the cluster does not answer", self.cluster.sink)

    def _create(self, admin: AdminClient, names: list[str], make: tuple[int, int]) -> None:
        wanted = [NewTopic(name, *make, config=dict(self.config)) for name in names]
        patience = self.cluster.patience
        for made in admin.create_topics(wanted, operation_timeout=patience).values():
            try:
                made.result(timeout=patience)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
