"""One connection of this process, which lives in a thread with an event loop of its own: between batches too it answers
the server, which would otherwise hang up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from nats.aio.client import Client

from tailrace.contracts import never
from tailrace.errors import SinkError
from tailrace.sinks.nats.connection import LAST_WAIT_S, Access, abort, connect, unavailable
from tailrace.sinks.nats.window import Past, Record, Window

_LOOK_S = 0.05
_JOIN_S = 2.0

T = TypeVar("T")


class Link:
    """Usable until the first failure. Then `discard` it: nothing of it is sent any more."""

    def __init__(self, access: Access, stream: str | None, past: Past, dynamic: bool) -> None:
        """Connects. Raises `SinkError`."""
        self._sink = access.sink
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # all that matters is raised
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats/{access.sink}", daemon=True)
        self._thread.start()
        self._client: Client | None = None
        self._window: Window | None = None
        self._failure: SinkError | None = None
        try:
            self._wait(self._open(access, stream, past, dynamic), access.patience + 1, access.patience + 1, never)
        except BaseException:
            self.discard()
            raise

    @property
    def usable(self) -> bool:
        return self._failure is None

    @property
    def max_payload(self) -> int:
        """Bytes of a record's value and headers that the server takes."""
        assert self._client is not None
        return self._client.max_payload

    def begin(self) -> None:
        assert self._window is not None
        self._window.begin()

    def send(
        self, records: Sequence[Record], patience: float, until: float, ending: Callable[[], bool]
    ) -> list[tuple[int, SinkError]]:
        """`Window.send`, for at most `patience` seconds without an answer and up to the time `until`."""
        assert self._window is not None
        self._window.listen()
        return self._wait(self._window.send(records), patience, until - time.monotonic(), ending)

    def discard(self) -> None:
        """End it at once, and the thread with it."""
        self._loop.call_soon_threadsafe(self._loop.create_task, self._end())
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _open(self, access: Access, stream: str | None, past: Past, dynamic: bool) -> None:
        self._client = await connect(access, self._failed)
        self._window = Window(self._client, self._sink, stream, past, dynamic)
        await self._window.open()

    async def _end(self) -> None:
        """Abort the connection, let go of everything that works for it, and stop the loop."""
        if self._client is not None:
            abort(self._client)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()

    def _failed(self, error: SinkError) -> None:
        self._failure = self._failure or error
        if self._window is not None:
            self._window.fail(error)

    def _wait(self, task: Coroutine[Any, Any, T], patience: float, seconds: float, ending: Callable[[], bool]) -> T:
        future, until = asyncio.run_coroutine_threadsafe(task, self._loop), time.monotonic() + seconds
        while not concurrent.futures.wait([future], _LOOK_S).done:
            idle = 0.0 if self._window is None else self._window.idle()
            if idle > patience or (idle > LAST_WAIT_S and ending()):
                raise unavailable(f"no record was acknowledged for {idle:.0f} seconds", self._sink)
            if time.monotonic() > until:
                hint = "raise batch_timeout_secs, or make batches smaller"
                raise unavailable("the batch took longer than batch_timeout_secs", self._sink, hint)
        return future.result()
