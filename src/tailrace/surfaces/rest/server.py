"""The server's process: a service and the application over it, until a signal ends both."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from tailrace.config.document import read_document
from tailrace.errors import SetupError, TailraceError, located
from tailrace.machine import signals
from tailrace.machine.durable import make_directory, private
from tailrace.spec import Platform, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.service import Service
from tailrace.surfaces.page import with_page
from tailrace.surfaces.rest.access import TOKEN
from tailrace.surfaces.rest.app import build

HANG_UP_S = 3
"""How long requests that run may go on after the signal. Event streams never end by themselves."""
BACKLOG = 512
SHORTEST_TOKEN = 20
STARTED_BY = "file"
"""The actor of what the start applies."""


def serve(platform: Platform, files: Sequence[Path], on_ready: Callable[[str], None]) -> None:
    """Blocks. `files` are applied first; `on_ready` is told the address. Raises `serve.running` where a server has the
    data directory, `serve.address` where the address is taken."""
    settings = platform.server
    with _alone(Layout.of(platform)), _listening(settings.host, settings.port) as line:
        service = Service(platform)
        try:
            token = _own_token(service) if settings.tokens_required else os.environ.get(TOKEN)
            load_pipelines(files)  # what is wrong is told with its lines, for all of them, before anything is changed
            for file in files:
                _apply(service, file)
            service.start()
            app = with_page(build(service, tokens_required=settings.tokens_required, hosts=settings.hosts, token=token))
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=HANG_UP_S,
            )
            host, port = line.getsockname()[:2]
            on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            server = _Server(config)
            with signals.answered(server.answer):
                server.run(sockets=[line])
                service.close()  # while signals are still heard: the next one ends the wait
        finally:
            service.close()


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would die of them before anything is drained."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def answer(self, number: int) -> None:
        """The first ends the server, which drains; the second ends the process, which loses nothing (Law 7)."""
        if self.should_exit:
            os._exit(128 + number)
        self.should_exit = True


def _apply(service: Service, file: Path) -> None:
    document = read_document(file)
    try:
        service.apply(document.data, actor=STARTED_BY, cause=f"{file.name} at the start")
    except TailraceError as error:
        raise located(error, str(file)) from None


def _own_token(service: Service) -> str | None:
    """That of the environment. Raises `serve.no_token` where nobody could be let in, or everybody soon."""
    token = os.environ.get(TOKEN)
    if token is not None and len(token) < SHORTEST_TOKEN:
        hint = "make one that nobody guesses: openssl rand -hex 32"
        raise SetupError("serve.weak_token", f"{TOKEN} has fewer than {SHORTEST_TOKEN} characters", hint=hint)
    now_us = time.time() * 1_000_000
    valid = (each for each in service.tokens.list() if each.revoked_us is None)
    if token is None and not any(each.expires_us is None or each.expires_us > now_us for each in valid):
        hint = f"set {TOKEN} (openssl rand -hex 32 makes one), or: tailrace token create NAME --scope admin"
        raise SetupError("serve.no_token", "every request needs a token, and there is none", hint=hint, where="server")
    return token


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """One server for a data directory."""
    make_directory(layout.root)
    with open(layout.root / "server.lock", "a", opener=private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop the other one, or use another data_dir"
            raise SetupError("serve.running", "a server runs in this data directory", hint=hint) from None
        yield


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind((host, port))
        except OSError as error:
            hint = "choose another with --port, or stop what listens there"
            message = f"cannot listen on {host}:{port}: {error.strerror}"
            raise SetupError("serve.address", message, hint=hint, where="server") from None
        line.listen(BACKLOG)
        yield line
