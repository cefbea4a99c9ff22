"""Events and audit rows: in order, never under a number twice, and within bounds."""

from __future__ import annotations

import threading
from contextlib import closing

from tailrace.control import Store
from tailrace.control.audit import Audit, AuditFilter
from tailrace.control.events import Events


def test_events_are_read_on_from_a_number(store: Store) -> None:
    events = Events(store)
    made = [events.add("pipeline", "shop", "state", {"n": n}) for n in range(4)]
    page = events.after(0, limit=2)
    assert (page.events, page.missed) == (tuple(made[:2]), False)
    assert events.after(page.events[-1].number).events == tuple(made[2:])
    assert events.after(events.last()).events == ()


def test_whoever_comes_too_late_is_told(store: Store) -> None:
    events = Events(store, kept=3)
    for n in range(5):
        events.add("pipeline", "shop", "state", {"n": n})
    page = events.after(1)
    assert ([each.data["n"] for each in page.events], page.missed) == ([2, 3, 4], True)
    assert not events.after(2).missed


def test_a_reader_misses_nothing_of_writers_at_once(store: Store) -> None:
    """What is read up to a number is all there ever is before it, although transactions end in any order."""
    seen: list[int] = []

    def write() -> None:
        with closing(Store(store.place)) as own:
            for _ in range(15):
                Events(own).add("pipeline", "shop", "state")

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or Events(store).last() > (seen or [0])[-1]:
        seen += [each.number for each in Events(store).after((seen or [0])[-1]).events]
    assert seen == list(range(1, 46))


def test_audit_rows_are_found_by_all_that_is_said(store: Store) -> None:
    audit = Audit(store)
    for n in range(3):
        audit.add("ann", "login.refused", "token", f"t{n}", {"n": n})
    audit.add("ben", "login.refused", "token", "t1", {"url": "postgres://u:hunter2@h/db", "list": ["password=hunter2"]})
    rows = audit.list(AuditFilter(action="login.refused"))
    assert [(row.actor, row.name) for row in rows] == [("ben", "t1"), ("ann", "t2"), ("ann", "t1"), ("ann", "t0")]
    assert [row.actor for row in audit.list(AuditFilter(kind="token", name="t1"))] == ["ben", "ann"]
    assert [row.name for row in audit.list(AuditFilter(actor="ann"), before=rows[1].number, limit=1)] == ["t1"]
    assert len(audit.list(AuditFilter(since_us=rows[-1].at_us, until_us=rows[0].at_us + 1))) == 4
    assert list(audit.list(AuditFilter(since_us=rows[0].at_us + 1))) == []
    assert "hunter2" not in str(rows)
