"""Timelines: a promoted standby goes on with a history of its own, which may lack what the old primary had."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.capture.postgres.connection import REPAIR, ReplicationStream
from tailrace.capture.postgres.messages import lsn_number, lsn_text
from tailrace.errors import SourceError

_FIELDS = 2


def switch_points(history: str) -> dict[int, int]:
    """Of a timeline's history file: each ancestor and the position at which its successor left it."""
    lines = (line.split() for line in history.splitlines() if not line.lstrip().startswith("#"))
    return {int(fields[0]): lsn_number(fields[1]) for fields in lines if len(fields) >= _FIELDS}


def check_history(stream: ReplicationStream, timeline: str, resume: Mapping[str, str]) -> None:
    """The server on `timeline` must have everything up to our position, and the same as where we read it.

    Equal positions of two timelines mean the same WAL only up to the point where they part.
    """
    ours, theirs = int(resume["timeline"]), int(timeline)
    if ours == theirs:
        return
    if ours > theirs:
        raise SourceError(
            "source.wrong_server",
            f"the log continues timeline {ours}, this server is still on timeline {theirs}",
            hint="it is a former primary or an old backup: point source.dsn at the server that was promoted",
        )
    [(_, history)] = stream.command(f"TIMELINE_HISTORY {theirs}")
    parted = switch_points(str(history)).get(ours)
    if parted is None:
        raise _left_behind(resume, f"timeline {theirs} does not descend from our timeline {ours}")
    if lsn_number(resume["lsn"]) > parted:
        raise _left_behind(
            resume,
            f"the server was promoted at {lsn_text(parted)} to timeline {theirs}, before it had what the log has",
        )


def _left_behind(resume: Mapping[str, str], what: str) -> SourceError:
    return SourceError(
        "source.position_lost",
        f"{what}: the log's position {resume['lsn']} is not on this server's history",
        hint=REPAIR,
    )
