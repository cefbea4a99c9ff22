"""Operations: done by one at a time, once per key, and ended the way they were asked to."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tailrace.control import Store
from tailrace.control.audit import Audit
from tailrace.control.operations import Operation, OperationFilter, Operations
from tailrace.errors import ConfigError, SinkError

KINDS = ("verify", "snapshot")


@pytest.fixture
def operations(store: Store) -> Operations:
    return Operations(store)


def begun(operations: Operations, kind: str = "verify") -> Operation:
    operations.request(kind, "shop", actor="ann")
    found = operations.claim("one", [kind])
    assert found is not None
    return found


def test_work_is_done_from_the_oldest_on(operations: Operations) -> None:
    first = operations.request("verify", "shop", {"tables": ["a"]}, actor="ann")
    second = operations.request("snapshot", "shop", actor="ann")
    operations.request("other", "shop", actor="ann")
    assert (first.state, first.request, first.started_us) == ("queued", {"tables": ["a"]}, None)
    found = [operations.claim("one", KINDS), operations.claim("two", KINDS), operations.claim("one", KINDS)]
    assert [each and (each.id, each.state, each.holder) for each in found] == [
        (first.id, "running", "one"),
        (second.id, "running", "two"),
        None,
    ]
    assert operations.report(first.id, "one", {"rows": 10})
    assert operations.get(first.id).progress == {"rows": 10}
    assert operations.finish(first.id, "one", result={"equal": True})
    assert operations.finish(second.id, "two", error=SinkError("sink.refused", "no", hint="ask"))
    done, failed = operations.get(first.id), operations.get(second.id)
    assert (done.state, done.result, done.error, done.ended) == ("done", {"equal": True}, None, True)
    assert (failed.state, failed.error and failed.error["code"]) == ("failed", "sink.refused")


def test_only_who_has_it_may_speak_of_it(operations: Operations) -> None:
    mine = begun(operations)
    assert not operations.report(mine.id, "another", {})
    assert not operations.finish(mine.id, "another")
    assert operations.finish(mine.id, "one")
    assert not operations.finish(mine.id, "one", result={"late": True})
    assert not operations.report(mine.id, "one", {})
    assert operations.get(mine.id).result is None


def test_the_same_key_is_the_same_operation(operations: Operations) -> None:
    first = operations.request("verify", "shop", {"a": 1, "b": 2}, actor="ann", idempotency_key="k")
    assert operations.request("verify", "shop", {"b": 2, "a": 1}, actor="ann", idempotency_key="k") == first
    assert operations.request("snapshot", "shop", actor="ann", idempotency_key="k").id != first.id
    for target, request in (("other", {"a": 1, "b": 2}), ("shop", {"a": 1})):
        with pytest.raises(ConfigError, match="another request") as caught:
            operations.request("verify", target, request, actor="ann", idempotency_key="k")
        assert caught.value.code == "store.conflict"
    assert len(operations.list()) == 2


def test_many_who_ask_and_take_at_once_get_one_each(store: Store) -> None:
    asked: list[str] = []
    taken: list[str] = []

    def work(number: int) -> None:
        with closing(Store(store.place)) as own:
            operations = Operations(own)
            for n in range(4):
                asked.append(operations.request("verify", "shop", actor="ann", idempotency_key=str(n)).id)
            while (found := operations.claim(str(number), ["verify"])) is not None:
                taken.append(found.id)

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(asked), len(set(asked))) == (12, 4)
    assert sorted(taken) == sorted(set(asked))


def test_cancel_ends_what_waits_and_asks_what_runs(operations: Operations, store: Store) -> None:
    waiting = operations.request("snapshot", "shop", actor="ann")
    assert operations.cancel(waiting.id, actor="ben").state == "cancelled"
    running = begun(operations)
    asked = operations.cancel(running.id, actor="ben")
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert not operations.report(running.id, "one", {"rows": 1})
    assert operations.stop(running.id, "one")
    assert operations.cancel(running.id, actor="ben").state == "cancelled"
    assert [row.action for row in Audit(store).list() if row.actor == "ben"] == ["operation.cancel"] * 2
    assert operations.claim("one", KINDS) is None


def test_what_a_dead_holder_had_waits_again(operations: Operations) -> None:
    left, cancelled, others = begun(operations), begun(operations), begun(operations, "snapshot")
    operations.cancel(cancelled.id, actor="ann")
    assert {each.id: each.state for each in operations.requeue("one")} == {
        left.id: "queued",
        cancelled.id: "cancelled",
        others.id: "queued",
    }
    assert not operations.finish(left.id, "one")
    found = operations.claim("two", ["verify"])
    assert found is not None and found.id == left.id


def test_operations_are_listed_by_what_is_said_newest_first(operations: Operations) -> None:
    made = [operations.request(kind, "shop", actor="ann").id for kind in ("verify", "snapshot", "verify")]
    operations.claim("one", ["snapshot"])
    assert [each.id for each in operations.list()] == made[::-1]
    assert [each.id for each in operations.list(OperationFilter(kind="verify"))] == [made[2], made[0]]
    assert [each.id for each in operations.list(OperationFilter(states=("running",)))] == [made[1]]
    page = operations.list(limit=2)
    assert [each.id for each in operations.list(before=page[-1].number)] == [made[0]]
    assert list(operations.list(OperationFilter(object="other"))) == []
    with pytest.raises(ConfigError) as caught:
        operations.get("nothing")
    assert caught.value.code == "operation.missing"
