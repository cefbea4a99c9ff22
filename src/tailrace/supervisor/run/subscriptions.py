"""Who may hold a log: when a pipeline starts, its subscribers are brought in line with its document.

The rule for a sink that the document no longer has (removed, renamed, or moved to another source): its hold is
*released*, never deleted, and that is said at every start. What it has not read stays in the log as long as
`log.retention` keeps it, so that a name changed by mistake loses nothing until then, and is refused with `log.expired`
after that. Once nothing of it is left in the log, it is forgotten. A pipeline that is not started releases nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tailrace.changelog import Awaited, Owner, Subscriber, Subscribers, earliest
from tailrace.spec import Pipeline
from tailrace.supervisor.layout import Layout


def settle_subscribers(pipeline: Pipeline, layout: Layout) -> tuple[str, ...]:
    """Release what the pipeline no longer has, and hold what it has as its document says. Returns what somebody should
    know. Only for a pipeline whose run lock is held, before its taps start."""
    logs = sorted(layout.logs.iterdir()) if layout.logs.is_dir() else []
    return tuple(text for log in logs if log.is_dir() for text in _settle(pipeline, log))


def awaited(pipeline: Pipeline) -> Awaited:
    """The sinks whose progress is the pipeline's, by its commit policy. Where no sink is waited for, all are."""
    holds = {Owner(pipeline.name, sink.id).name: pipeline.hold(sink) for sink in pipeline.sinks}
    waited = tuple(name for name, hold in holds.items() if hold.required) or tuple(holds)
    return Awaited(waited, min(pipeline.spec.commit_policy.quorum or len(waited), len(waited)))


def _settle(pipeline: Pipeline, log: Path) -> Iterator[str]:
    sinks = (*pipeline.sinks, *pipeline.disabled) if log.name == pipeline.source_id else ()
    holds = {sink.id: pipeline.hold(sink) for sink in sinks}
    subscribers = Subscribers(log)
    for each in subscribers.all():
        if each.owner is None or each.owner.pipeline != pipeline.name:
            continue
        wanted = holds.get(each.owner.sink)
        if wanted is None:
            yield _release(subscribers, each, log)
        elif each.owner.table:
            subscribers.report(each.name, each.offset, required=wanted.required and not wanted.quorum)
        else:
            subscribers.report(each.name, each.offset, required=wanted.required, quorum=wanted.quorum)


def _release(subscribers: Subscribers, each: Subscriber, log: Path) -> str:
    if each.released and each.offset < earliest(log):
        subscribers.forget(each.name)
        return f"{each.name} is forgotten: it is not in the pipeline, and the log {log.name} has dropped what it missed"
    subscribers.release(each.name, each.offset)
    forget = f"tailrace log forget {shlex.quote(str(log))} {shlex.quote(each.name)}"
    return (
        f"{each.name} is not in the pipeline any more, so the log {log.name} waits for it no longer; what it has not "
        f"read, from offset {each.offset} on, stays only as long as log.retention keeps it. If it was renamed by "
        f"mistake, give the sink its name back; if it will not come back: {forget}"
    )
