"""A server as a child process: started so that it cannot outlive its parent, awaited, stopped, killed."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tailrace.errors import SetupError
from tailrace.machine.lifeline import PR_SET_PDEATHSIG

_LOG_TAIL_BYTES = 2_000


class Account(NamedTuple):
    """Who a server runs as, when that is not the caller."""

    uid: int
    gid: int


class ServerProcess:
    """One run of a server program. `orphaned` is the signal the kernel sends it when its parent dies."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        orphaned: signal.Signals,
        env: Mapping[str, str],
        account: Account | None = None,
    ) -> None:
        self._program = Path(command[0]).name
        self._log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env=dict(env),
                # A session of its own: Ctrl-C in a terminal is for the program, not for its servers.
                start_new_session=True,
                # Nothing it calls takes a lock, so threads of the parent cannot block it.
                preexec_fn=_dies_with_parent(orphaned),  # noqa: PLW1509
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_until(self, ready: Callable[[], bool], *, seconds: float = 60) -> None:
        """Return when `ready()`; raise with the end of the server's log when it exits or takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise self._failure(f"exited with status {self._popen.returncode}")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"was not ready after {seconds:.0f} s")
            time.sleep(0.02)

    def end(self, *signals: signal.Signals, seconds: float) -> None:
        """Send each signal in turn, giving each `seconds` to work; kill what is then still there."""
        for number in signals:
            self._popen.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(seconds)
                return
        self.kill()

    def kill(self) -> None:
        """SIGKILL the process and its children, and return when they are gone."""
        # Stopped first, so that it cannot fork a child this list does not have.
        self._popen.send_signal(signal.SIGSTOP)
        children = list(_children(self.pid)) if self.running else []
        self._popen.kill()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        while any(_alive(pid) for pid in children):
            time.sleep(0.01)

    def _failure(self, what: str) -> SetupError:
        end = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return SetupError(
            "environment.server_failed",
            f"{self._program} {what}; its log ends with:\n{end}",
            hint="the log above names the cause",
        )


def free_port() -> int:
    """A loopback port nobody listens on now. Whoever binds it later may lose a race, and should ask again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged() -> Account | None:
    """The account for a server that refuses to run as root: `nobody` for root, the caller's own otherwise."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def reachable(path: Path, account: Account) -> bool:
    """Whether `account`, in no other group, may enter the folder `path` and every folder above it."""
    return all(_may_enter(folder.stat(), account) for folder in (path, *path.parents))


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & 0o100)
    if status.st_gid == account.gid:
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def _dies_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _children(parent: int) -> Iterator[int]:
    """Direct children only: that is all a postmaster has, each in a session of its own."""
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _status(int(entry.name))
        if fields and int(fields[1]) == parent:
            yield int(entry.name)


def _alive(pid: int) -> bool:
    fields = _status(pid)
    return bool(fields) and fields[0] not in "ZX"


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
