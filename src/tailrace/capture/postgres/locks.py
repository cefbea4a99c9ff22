"""Who keeps us waiting, in words."""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

from tailrace.errors import SourceError

_SESSION = "a.pid, a.application_name, a.state, extract(epoch FROM now() - a.xact_start)::int8"
BLOCKERS = f"SELECT {_SESSION}, NULL FROM pg_stat_activity a WHERE a.pid = ANY (pg_blocking_pids(%s)) ORDER BY a.pid"
"""The sessions that a server process waits for; see `spoken`."""
_HOLDERS = f"""
SELECT DISTINCT {_SESSION}, CASE l.locktype WHEN 'relation' THEN l.relation::regclass::text ELSE 'a publication' END
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
    AND (l.locktype = 'relation' AND l.relation >= 16384  -- the first that is not the system's
        OR l.locktype = 'object' AND l.classid = 'pg_publication'::regclass)
ORDER BY 1 LIMIT 5
"""


def not_available(connection: psycopg.Connection[TupleRow], waited_s: float) -> SourceError:
    """A lock did not come in time. Who had it has to be guessed afterwards: whoever has a lock like it."""
    held = spoken(connection.execute(_HOLDERS).fetchall())
    return SourceError(
        "source.locked",
        f"waited {waited_s:g} s for a lock in vain; such locks are held by {held}",
        hint="end that transaction; it is retried",
    )


def spoken(sessions: list[TupleRow]) -> str:
    """Sessions as `BLOCKERS` finds them."""
    told = [
        f"process {pid} ({application or 'unnamed'}, {state or 'of another role'}, for {seconds or 0} s)"
        + (f" on {table}" if table else "")
        for pid, application, state, seconds, table in sessions
    ]
    return ", ".join(told) or "nobody any more"
