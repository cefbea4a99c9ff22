"""What pipelines are to do and what they do: told once, on change, with cause and actor."""

from __future__ import annotations

from tailrace.control import Store
from tailrace.control.actual import SYSTEM, Reason, States, Subject
from tailrace.control.audit import Audit
from tailrace.control.desired import Desires
from tailrace.control.events import Events

SHOP, SINK = Subject("shop"), Subject("shop", "sink:out")


def test_a_wish_is_kept_with_who_had_it_until_another_comes(store: Store) -> None:
    desires = Desires(store)
    assert desires.get("shop") is None
    first = desires.set("shop", "running", actor="ann", cause="applied")
    assert desires.set("shop", "running", actor="ben", cause="again") == first == desires.get("shop")
    second = desires.set("shop", "paused", actor="ben", cause="maintenance")
    assert desires.all() == {"shop": second}
    found = [(row.actor, row.action, row.detail) for row in Audit(store).list()]
    assert found == [
        ("ben", "pipeline.desire", {"from": "running", "to": "paused", "cause": "maintenance"}),
        ("ann", "pipeline.desire", {"from": None, "to": "running", "cause": "applied"}),
    ]
    desires.forget("shop")
    assert desires.all() == {}


def test_only_a_change_is_a_transition(store: Store) -> None:
    states, slow = States(store), Reason("sink.slow", "3 s behind", "give it time")
    assert states.set(SHOP, "starting", cause="applied", actor="ann")
    assert states.set(SHOP, "running", cause="it delivers")
    assert not states.set(SHOP, "running", cause="it delivers")
    assert states.set(SHOP, "degraded", slow, cause="no progress")
    since = states.of("shop")[""].since_us
    assert not states.set(SHOP, "degraded", Reason("sink.slow", "4 s behind"), cause="no progress")
    assert states.set(SHOP, "degraded", Reason("sink.gone"), cause="no answer")
    found = states.get(SHOP)
    assert found is not None and (found.state, found.since_us, found.reason.code) == ("degraded", since, "sink.gone")
    told = [(step.before, step.after, step.code, step.cause, step.actor) for step in states.transitions("shop")]
    assert told == [
        ("degraded", "degraded", "sink.gone", "no answer", SYSTEM),
        ("running", "degraded", "sink.slow", "no progress", SYSTEM),
        ("starting", "running", "", "it delivers", SYSTEM),
        (None, "starting", "", "applied", "ann"),
    ]
    assert len(Events(store).after(0).events) == 4


def test_parts_have_states_of_their_own(store: Store) -> None:
    states = States(store)
    for subject in (SHOP, SINK, Subject("shop", "table:out/public.orders"), Subject("other")):
        states.set(subject, "running", cause="it delivers")
    states.set(SINK, "paused", cause="asked", actor="ann")
    assert {part: each.state for part, each in states.of("shop").items()} == {
        "": "running",
        "sink:out": "paused",
        "table:out/public.orders": "running",
    }
    assert [each.subject.name for each in states.all()] == ["other", "shop", "shop", "shop"]
    page = states.transitions("shop", limit=2)
    assert [(step.subject.part, step.after) for step in page] == [
        ("sink:out", "paused"),
        ("table:out/public.orders", "running"),
    ]
    assert [step.subject for step in states.transitions("shop", before=page[-1].number)] == [SINK, SHOP]


def test_what_is_gone_is_forgotten_with_its_parts(store: Store) -> None:
    states = States(store)
    for subject in (SHOP, SINK, Subject("other")):
        states.set(subject, "running", cause="it delivers")
    states.forget(SINK)
    assert list(states.of("shop")) == [""]
    states.forget(SHOP)
    assert (states.of("shop"), states.transitions("shop"), len(states.all())) == ({}, [], 1)


def test_the_oldest_transitions_go(store: Store) -> None:
    states = States(store, kept=3)
    states.set(Subject("other"), "running", cause="it delivers")
    for _ in range(3):
        states.set(SHOP, "running", cause="it delivers")
        states.set(SHOP, "stopped", cause="asked")
    assert [step.after for step in states.transitions("shop")] == ["stopped", "running", "stopped"]
    assert len(states.transitions("other")) == 1
