"""What `tailrace doctor` looks at in a Redis server. Nothing is written to find out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.redis.connection import Servers, connected

if TYPE_CHECKING:
    from tailrace.sinks.redis import RedisSink

_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")


def check_servers(subject: Subject, sink: RedisSink, delivery: Delivery) -> Iterator[Check]:
    """Whether they answer, keep what they acknowledge, and keep marks at all."""
    try:
        with connected(sink.access(delivery), sink.id) as servers:
            servers.numbers([f"tailrace:{delivery.pipeline}/{sink.id}"])
            settings = list(_settings(servers))
    except TailraceError as error:
        yield subject.failed("server", error)
        yield subject.skipped("durability", "the server does not answer")
        return
    yield subject.ok("server", f"{sink.address.told} answers")
    if not all(settings):
        yield subject.skipped("durability", "the user may not ask for settings (CONFIG GET)")
        return
    yield _durability(subject, settings)
    yield _eviction(subject, settings)


def _settings(servers: Servers) -> Iterator[dict[str, str]]:
    """Of each server that takes writes; empty where the user may not ask."""
    for master in servers.masters():
        found: dict[str, str] = {}
        try:
            for name in _SETTINGS:
                answer: Any = master.config_get(name)
                found |= {_text(key): _text(value) for key, value in answer.items()}
        except ResponseError:
            found = {}
        yield found


def _durability(subject: Subject, settings: list[dict[str, str]]) -> Check:
    if all((each.get("appendonly"), each.get("appendfsync")) == ("yes", "always") for each in settings):
        return subject.ok("durability", "what the server acknowledges is on its disk")
    text = "a crash of the server may lose changes that it acknowledged"
    return subject.warn("durability", text, "set `appendonly yes` and `appendfsync always`, if that must not be")


def _eviction(subject: Subject, settings: list[dict[str, str]]) -> Check:
    policies = {each.get("maxmemory-policy", "") for each in settings}
    if any(policy.startswith("allkeys") for policy in policies):
        text = f"the server may evict streams and the sink's marks ({', '.join(sorted(policies))})"
        return subject.warn(
            "eviction", text, "set `maxmemory-policy` to noeviction, or to one that begins with volatile"
        )
    return subject.ok("eviction", "the server evicts no marks")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
