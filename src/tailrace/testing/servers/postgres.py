"""A real PostgreSQL, 15, 16 or 18, set up for logical replication.

PostgreSQL refuses to run as root. For root, the server runs as `nobody`, which owns the server's folder;
programs it may not reach (a virtual environment below a private home) are copied into that folder first. A
`directory` it may not reach is refused with `environment.directory_unreachable`.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from tailrace.errors import SetupError
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.postgres_binaries import CLIENT_MAJOR, Installation, give, installation
from tailrace.testing.servers.process import ServerProcess, reachable, unprivileged

USER = "postgres"

# No fsync unless asked for: it guards against power loss, not against a kill -9.
DEFAULT_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "shared_buffers": "64MB",
    "fsync": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_STATUS_LINE = 7


class PostgresServer(LocalServer):
    """One PostgreSQL with password authentication for the superuser `postgres`.

    `settings` are added to `DEFAULT_SETTINGS`; changing `self.settings` takes effect at the next `start()`.
    With a `directory` that already holds data, data and password are kept.
    """

    def __init__(
        self,
        major: int = 18,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
    ) -> None:
        super().__init__("postgres", directory)
        self.major = major
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._given_password = password
        self._account = unprivileged()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    def dsn(self, database: str = "postgres", **params: str) -> str:
        """A connection URL for the superuser; `params` are libpq's, such as `application_name`."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        return f"postgresql://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}{query}"

    def bin(self, name: str) -> Path:
        """A client program such as psql or pg_recvlogical: the newest major's, which speaks to all."""
        return installation(CLIENT_MAJOR).program(name)

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def _prepare(self) -> None:
        if self._account is not None:
            os.chown(self.directory, *self._account)
            self._require_reach(self.directory)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()

    def _require_reach(self, path: Path) -> None:
        if self._account is not None and not reachable(path, self._account):
            raise SetupError(
                "environment.directory_unreachable",
                f"PostgreSQL cannot run as root, and the user nobody may not enter {path}",
                hint="give a directory below /tmp, or none",
            )

    def _initialise(self) -> None:
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(self._given_password or secrets.token_hex(12))
        if self._account is not None:
            give(self.directory, self._account)
        self._run_program(
            *("initdb", "-D", str(self.data), "-U", USER, "--no-sync", "-E", "UTF8", "--locale=C"),
            *("-A", "scram-sha-256", f"--pwfile={self._password_file}"),
        )

    def _run_program(self, name: str, *arguments: str) -> None:
        """Run one of the server's programs as the server's account."""
        done = subprocess.run(
            [str(self._programs().program(name)), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=_environment(),
            user=self._account.uid if self._account else None,
            group=self._account.gid if self._account else None,
            extra_groups=[] if self._account else None,
        )
        if done.returncode != 0:
            raise SetupError("environment.postgres", f"{name} failed:\n{done.stderr}", hint="see its message")

    def _launch(self, port: int) -> ServerProcess:
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
        }
        # In the file, not on the command line, so that a test's ALTER SYSTEM still wins.
        (self.data / "postgresql.conf").write_text("".join(map(_line, settings.items())))
        return ServerProcess(
            [str(self._programs().program("postgres")), "-D", str(self.data)],
            log=self.log,
            orphaned=signal.SIGQUIT,
            env=_environment(),
            account=self._account,
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A killed server leaves its file behind: the pid tells whose it is.
        return len(lines) > _STATUS_LINE and lines[0] == str(process.pid) and lines[_STATUS_LINE].strip() == "ready"

    def _end(self, process: ServerProcess) -> None:
        # A fast shutdown waits for replication clients to confirm; an immediate one does not.
        process.end(signal.SIGINT, signal.SIGQUIT, seconds=10)

    def _programs(self) -> Installation:
        found = installation(self.major)
        if self._account is None:
            return found
        return found.within_reach_of(self._account, self.directory / "programs")


def _line(setting: tuple[str, str]) -> str:
    name, value = setting
    escaped = value.replace("'", "''")
    return f"{name} = '{escaped}'\n"


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
