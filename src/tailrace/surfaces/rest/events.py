"""What happens, as it happens: server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from tailrace.supervisor.service import Service
from tailrace.surfaces.rest.access import Viewer
from tailrace.surfaces.rest.pipelines import Use

router = APIRouter(tags=["events"])
LOOK_S = 0.5
"""How soon an event is told."""
PING_S = 10


@router.get("/events", response_class=EventSourceResponse)
async def events(
    request: Request,
    service: Use,
    caller: Viewer,
    after: Annotated[int | None, Query(ge=0, description="The number of the last event that is known.")] = None,
    follow: Annotated[bool, Query(description="`false`: end after what has happened up to now.")] = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Changes of documents, states and operations, each with a number that grows. `Last-Event-ID` goes on where a
    connection broke; an event `missed` says that some are gone, so that everything is to be looked at anew."""
    if last_event_id is not None and last_event_id.isdigit():
        after = int(last_event_id)
    start = await asyncio.to_thread(service.newest_event) if after is None else after
    return EventSourceResponse(_stream(request, service, start, follow=follow), ping=PING_S)


async def _stream(request: Request, service: Service, after: int, *, follow: bool) -> AsyncIterator[ServerSentEvent]:
    while not await request.is_disconnected():
        page = await asyncio.to_thread(service.events, after)
        if page.missed:
            yield ServerSentEvent(event="missed", data="{}")
        for each in page.events:
            after = each.number
            told = {"at": each.at_us / 1e6, "kind": each.kind, "name": each.name, "type": each.type, **each.data}
            yield ServerSentEvent(id=str(each.number), event=each.type, data=json.dumps(told))
        if not page.events and not follow:
            return
        if not page.events:
            await asyncio.sleep(LOOK_S)
