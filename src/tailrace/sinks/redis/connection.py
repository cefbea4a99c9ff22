"""Clients of Redis: one per process and address, and what their errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry
from redis.sentinel import Sentinel

from tailrace.config import redact
from tailrace.errors import SinkError
from tailrace.sinks.redis.address import Access
from tailrace.sinks.redis.scripts import BEHIND, Script

_HEALS = (
    NoConnection,  # so is a server that still loads its data
    NoAnswer,
    OSError,
    RedisClusterException,
    OutOfMemoryError,
    ReadOnlyError,
    ClusterDownError,
    TryAgainError,
    MasterDownError,
    AskError,  # which a moved slot is, too
)
_HEALS_BY_NAME = ("NOREPLICAS", "MISCONF", "BUSY", "UNKILLABLE")
"""What time heals, or somebody who gives the server memory or disk; by class, or by what the answer begins with."""
_NO_RIGHT = ("can't run this command", "can't access at least one of the keys", "ACL failure", "- auth:")
"""How scripts say what the user may not do, and the client of Sentinels that one of them does not let it in."""
_TLS_REFUSED = ("CERTIFICATE", "ALERT", "WRONG_VERSION_NUMBER", "UNKNOWN_CA", "NO_PROTOCOLS", "KEY_VALUES_MISMATCH")
_DEFAULT_LARGEST = 512 * 1024 * 1024

_open: dict[Access, Servers] = {}


@dataclass(frozen=True)
class Call:
    """One run of a script. All its keys are in one slot."""

    keys: Sequence[str]
    arguments: Sequence[str | int]


class Servers:
    """A client of the one server that takes writes, or of all of them in a cluster. Nothing is retried in here: what
    fails is the batch's."""

    def __init__(self, access: Access) -> None:
        self._cluster: Any = None
        self._one: Any = None
        username, password = access.login
        options = {**access.options(), "retry": Retry(NoBackoff(), 0), "username": username, "password": password}
        hosts, service = access.address.hosts, access.address.service
        if access.cluster:
            node: Any = ClusterNode
            nodes = [node(host, port) for host, port in hosts]
            self._cluster = RedisCluster(startup_nodes=nodes, **options)
        elif service is not None:
            user, secret = access.sentinel_login
            own = {**options, "username": user, "password": secret}
            sentinel: Any = Sentinel
            known = sentinel(hosts, sentinel_kwargs=own, **options)
            self._one = known.master_for(service, db=access.address.database)
        else:
            (host, port) = hosts[0]
            self._one = Redis(host=host, port=port, db=access.address.database, **options)
        self.largest = self._largest()

    def masters(self) -> list[Any]:
        """A client for each server that takes writes."""
        if self._cluster is None:
            return [self._one]
        return [self._cluster.get_redis_connection(node) for node in self._cluster.get_primaries()]

    def of(self, key: str) -> Any:
        """The client for a key."""
        if self._cluster is None:
            return self._one
        return self._cluster.get_redis_connection(self._cluster.get_node_from_key(key))

    def members(self, key: str) -> list[str]:
        """What is in a set."""
        return [member.decode() for member in self.of(key).smembers(key)]

    def add(self, key: str, members: Sequence[str]) -> None:
        """Put them into a set."""
        self.of(key).sadd(key, *members)

    def finish(self, mark: str, end: int, refused: str) -> None:
        """Move the mark of a whole sink. What was refused below it is nobody's any more."""
        self._ask([(self.of(mark), ("SET", mark, end)), (self.of(refused), ("DEL", refused))])

    def numbers(self, keys: Sequence[str]) -> list[int]:
        """What is stored under these keys; 0 for nothing."""
        answers = self._ask([(self.of(key), ("GET", key)) for key in keys])
        return [int(answer or 0) for answer in answers]

    def run(self, script: Script, calls: Sequence[Call]) -> None:
        """Run the script for each call, in order where they share a server. Raises for the first that fails; those
        behind it may have run, but for what builds on it."""
        named = self._ask([_command(self, "EVALSHA", script.sha, call) for call in calls], raises=False)
        if any(isinstance(answer, NoScriptError) for answer in named):
            named = self._ask([_command(self, "EVAL", script.text, call) for call in calls], raises=False)
        for answer, call in zip(named, calls, strict=True):
            if isinstance(answer, Exception):
                raise answer
            if answer == BEHIND:
                raise _gave_up(f"the mark {call.keys[0]} went back: the server lost writes, or another took over", "")

    def close(self) -> None:
        """End every connection, so that nothing is sent any more."""
        (self._one or self._cluster).close()
        if self._cluster is None:
            self._one.connection_pool.disconnect()
        else:
            self._cluster.disconnect_connection_pools()

    def _ask(self, commands: Sequence[tuple[Any, tuple[Any, ...]]], *, raises: bool = True) -> list[Any]:
        """Send commands, to each server all of its own at once; the answers in their order."""
        answers: list[Any] = [None] * len(commands)
        places: dict[int, list[int]] = {}
        for place, (client, _) in enumerate(commands):
            places.setdefault(id(client), []).append(place)
        for mine in places.values():
            pipeline = commands[mine[0]][0].pipeline(transaction=False)
            for place in mine:
                pipeline.execute_command(*commands[place][1])
            for place, answer in zip(mine, pipeline.execute(raise_on_error=raises), strict=True):
                answers[place] = answer
        return answers

    def _largest(self) -> int:
        """The most bytes of one text. Larger ones end the connection without a word."""
        name = "proto-max-bulk-len"
        found = []
        for client in self.masters():
            try:
                found.append(int(client.config_get(name).get(name, _DEFAULT_LARGEST)))
            except ResponseError:  # not everybody may ask
                found.append(_DEFAULT_LARGEST)
        return min(found, default=_DEFAULT_LARGEST)


def _command(servers: Servers, name: str, script: str, call: Call) -> tuple[Any, tuple[Any, ...]]:
    return servers.of(call.keys[0]), (name, script, len(call.keys), *call.keys, *call.arguments)


@contextmanager
def connected(access: Access, where: str) -> Iterator[Servers]:
    """The process's client for an address. After a failure it is thrown away; errors become `SinkError`s."""
    try:
        if access not in _open:
            _open[access] = Servers(access)
        yield _open[access]
    except (RedisError, RedisClusterException, OSError) as error:
        _discard(access)
        raise redis_error(error, access, where) from error
    except BaseException:
        _discard(access)
        raise


def _discard(access: Access) -> None:
    servers = _open.pop(access, None)
    if servers is not None:
        servers.close()


def redis_error(error: Exception, access: Access, where: str) -> SinkError:
    """What follows from an error: wait, or repair."""
    causes, text = list(_causes(error)), _text(error)
    logins = (AuthenticationError, AuthorizationError, NoPermissionError)
    if any(isinstance(each, logins) for each in causes) or any(sign in str(error) for sign in _NO_RIGHT):
        hint = "check `username` and `password`, and what the user may do (ACL LIST): docs/guides/redis.md has a rule"
        return SinkError("sink.refused", f"the server refuses the user: {text}", hint=hint, where=where)
    if access.address.encrypted and any(_of_tls(each) for each in causes):
        hint = "check `tls` and whether the server speaks TLS; a server with TLS has a URI with rediss"
        return SinkError("sink.refused", f"TLS fails: {text}", hint=hint, where=where)
    if isinstance(error, MovedError) and not access.cluster:
        return SinkError(
            "sink.refused", f"the server belongs to a cluster: {text}", hint="set cluster: true", where=where
        )
    if isinstance(error, RedisClusterException) and "not enabled" in text:
        return SinkError("sink.refused", text, hint="leave out `cluster`", where=where)
    if isinstance(error, _HEALS) or text.startswith(_HEALS_BY_NAME):
        away = isinstance(error, NoConnection | NoAnswer | OSError) and not isinstance(error, BusyLoadingError)
        what = "the server cannot be reached" if away else "the server does not take it"
        return _gave_up(f"{what}: {text}", where, encrypted=access.address.encrypted)
    hint = "see what the server says; it must be Redis 6.2 or newer, or Valkey, and the stream's key must be a stream"
    return SinkError("sink.refused", text, hint=hint, where=where)


def _text(error: Exception) -> str:
    """What it says, without what a client shows of itself."""
    text = str(error) or type(error).__name__
    return redact(text.partition(" : <")[0])


def _of_tls(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, FileNotFoundError) or ("SSL" in text and any(sign in text for sign in _TLS_REFUSED))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _gave_up(text: str, where: str, *, encrypted: bool = False) -> SinkError:
    """A server that wants a client's certificate and gets none may just end the connection."""
    tls = ", that `tls` has the certificate it may want" if encrypted else ""
    hint = f"check that the server runs, can be reached and has memory{tls}; the sink tries again by itself"
    return SinkError("sink.unavailable", text, hint=hint, where=where)
