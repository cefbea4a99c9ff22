from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tailrace.contracts import Span, Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.opensearch import OpenSearchSink, truncating
from tailrace.testing.servers import OpenSearchServer
from tailrace.testing.suites.sinks import DELIVERY, LOG, Change, Received, ServerSinkSuite, versions
from tailrace.testing.suites.sinks import deliver as deliver_changes
from tailrace.testing.suites.sinks import write as write_changes
from tests.sinks.search_documents import (
    NOBODY,
    ask,
    batch_of,
    change,
    deliver,
    documents,
    moved,
    new_name,
    records,
    sink_of,
    write,
)


class TestEvents(ServerSinkSuite):
    repeats = "absorbed"
    poison = "not a number"

    @pytest.fixture
    def sink(self, opensearch: OpenSearchServer) -> OpenSearchSink:
        """Records of the table `letters` must have a number as text, those of others may have any."""
        name = new_name()
        ask(opensearch, "PUT", f"/{name}-letters", {"mappings": {"properties": {"text": {"type": "integer"}}}})
        return sink_of(opensearch, id=name, mode="events", index=name + "-${source.table}")

    @pytest.fixture
    def received(self, sink: OpenSearchSink, opensearch: OpenSearchServer) -> Received:
        return lambda: records(opensearch, f"{sink.id}-*")

    @pytest.fixture
    def server(self, opensearch: OpenSearchServer) -> OpenSearchServer:
        return opensearch

    @pytest.fixture
    def hasty(self, sink: OpenSearchSink) -> OpenSearchSink:
        return sink.model_copy(update={"send_timeout_secs": 2.0})

    @pytest.fixture
    def unavailable(self) -> OpenSearchSink:
        return OpenSearchSink.from_document({"id": "search", "urls": [NOBODY], "mode": "events", "index": "anything"})


@pytest.fixture
def sink(opensearch: OpenSearchServer) -> OpenSearchSink:
    """A mirror."""
    made = sink_of(opensearch)
    made.prepare(DELIVERY)
    return made


@pytest.fixture
def found(opensearch: OpenSearchServer, sink: OpenSearchSink) -> Any:
    return lambda: documents(opensearch, f"{sink.id}-orders")


class TestMirror:
    def test_documents_are_the_rows(self, sink: OpenSearchSink, found: Any) -> None:
        text = "žluťoučký 🐎\n\u2028"
        deliver(
            sink,
            change(0, "r", 1, {"id": 1, "v": "a"}),
            change(1, "c", 2, {"id": 2, "v": "a"}),
            change(2, "c", 3, '{"id": 3,\n "nested": {"tags": [1, null]}}'),
            change(3, "u", 1, {"id": 1, "v": text}),
            change(4, "d", 2, None),
            change(5, "d", 9, None),
        )
        assert found() == {"1": {"id": 1, "v": text}, "3": {"id": 3, "nested": {"tags": [1, None]}}}

    def test_messages_and_schema_changes_are_no_rows(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, change(0, "c", 1, {"id": 1}), change(1, "m", None, None), change(2, "s", None, "{}"))
        assert found() == {"1": {"id": 1}}

    def test_a_key_of_several_columns_and_a_template(self, opensearch: OpenSearchServer) -> None:
        row = {**change(0, "c", 1, {"a": 1, "b": "ž/ 1"}), "key": '{"a": 1, "b": "ž/ 1"}'}
        sink = sink_of(opensearch)
        sink.prepare(DELIVERY)
        deliver(sink, row)
        assert set(documents(opensearch, f"{sink.id}-orders")) == {'[1,"ž/ 1"]'}
        name = new_name()
        shared = sink_of(opensearch, index=name, document_id="${source.table}:${key.b}")
        deliver(shared, row)
        assert set(documents(opensearch, name)) == {"orders:ž/ 1"}

    def test_the_same_span_twice(self, sink: OpenSearchSink, found: Any) -> None:
        rows = [change(seq, "u", seq % 3, {"n": seq}) for seq in range(9)]
        rows.append(change(9, "d", 0, None))
        deliver(sink, *rows)
        for _ in range(2):
            assert not write(sink, *rows).rejected
            assert found() == {"1": {"n": 7}, "2": {"n": 8}}

    @pytest.mark.parametrize("seed", range(2))
    def test_a_repeat_does_not_go_back_in_time(self, opensearch: OpenSearchServer, seed: int) -> None:
        """After every attempt, whatever part of the log it repeats, documents are what they were or newer."""
        chance = random.Random(seed)
        sink = sink_of(opensearch, batch_size=3)
        sink.prepare(DELIVERY)
        log = [_any_change(seq, chance) for seq in range(30)]
        most = 0
        while most < len(log):
            start = chance.randrange(most + 1)
            end = chance.randrange(start + 1, len(log) + 1)
            write(sink, *log[start:end])
            most = max(most, end)
            assert documents(opensearch, f"{sink.id}-orders") == _folded(log[:most])

    def test_a_key_change_moves_the_document(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, change(0, "c", 1, {"id": 1, "big": "B", "v": 1}), *moved(1, 1, 2, {"id": 2, "v": 2}, "big"))
        assert found() == {"2": {"id": 2, "v": 2, "big": "B"}}
        rows = [*moved(3, 2, 3, {"id": 3, "v": 3}, "big"), change(5, "c", 2, {"id": 2, "v": 9})]
        deliver(sink, *rows)
        expected = {"2": {"id": 2, "v": 9}, "3": {"id": 3, "v": 3, "big": "B"}}
        assert found() == expected
        assert not write(sink, *rows).rejected
        assert found() == expected

    def test_a_key_change_in_two_requests_and_in_two_attempts(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch, batch_size=1)
        sink.prepare(DELIVERY)
        deliver(sink, change(0, "c", 1, {"id": 1, "big": "B"}))
        rows = moved(1, 1, 2, {"id": 2}, "big")

        def half() -> Iterator[pa.RecordBatch]:
            yield batch_of(sink, rows[:1])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sink.open(DELIVERY, Span(LOG, 1, 3), 0).write(half())
        write(sink, *rows)
        assert documents(opensearch, f"{sink.id}-orders") == {"2": {"id": 2, "big": "B"}}

    def test_what_did_not_come_is_kept(self, sink: OpenSearchSink, found: Any) -> None:
        exact = '{"id": 1, "big": 12345678901234567890.10, "v": 1, "w": 1}'
        deliver(sink, change(0, "c", 1, exact), change(1, "u", 1, {"id": 1, "v": 2}, "big"))
        deliver(sink, change(2, "u", 1, {"id": 1, "v": 3}, "big"), change(3, "u", 1, {"id": 1, "v": 4}, "big"))
        assert found() == {"1": {"id": 1, "v": 4, "big": 12345678901234567890.10}}

    def test_numbers_that_did_not_come_keep_their_spelling(
        self, sink: OpenSearchSink, opensearch: OpenSearchServer
    ) -> None:
        import httpx

        deliver(sink, change(0, "c", 1, '{"id": 1, "big": 12345678901234567890.10}'))
        deliver(sink, change(1, "u", 1, {"id": 1}, "big"))
        text = httpx.get(f"{opensearch.url}/{sink.id}-orders/_source/1", trust_env=False).text
        assert text == '{"id": 1, "big": 12345678901234567890.10}'

    def test_a_document_is_never_half_a_row(self, sink: OpenSearchSink, found: Any) -> None:
        rows = [change(0, "u", 1, {"id": 1}, "big"), change(1, "c", 2, {"id": 2})]
        [refused] = write(sink, *rows).rejected
        assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/0")
        assert "`big`" in refused.error.message
        assert set(found()) == {"2"}

    def test_a_repeat_of_a_row_that_lacked_columns_and_is_gone(self, sink: OpenSearchSink, found: Any) -> None:
        """Updated, moved twice and deleted, all delivered, and again; at last only a part of it."""
        deliver(sink, *(change(id, "c", id, {"id": id, "big": "B"}) for id in (1, 2)))
        rows = [
            change(2, "u", 1, {"id": 1, "v": 1}, "big"),
            *moved(3, 1, 3, {"id": 3}, "big"),
            *moved(5, 3, 4, {"id": 4}, "big"),
            change(7, "u", 2, {"id": 2, "v": 1}, "big"),
            change(8, "d", 2, None),
        ]
        for some in (rows, rows, rows[:6]):
            assert not write(sink, *some).rejected
            assert found() == {"4": {"id": 4, "big": "B"}}

    def test_a_moved_row_takes_nothing_from_who_has_its_key_now(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, change(0, "c", 1, {"id": 1, "big": "B"}))
        rows = [*moved(1, 1, 2, {"id": 2}, "big"), change(3, "c", 1, {"id": 1, "big": "another"})]
        write(sink, rows[2])  # as far as a request came of which a part failed
        [refused] = write(sink, *rows, start=0).rejected
        assert refused.error.where == "public.orders at 0/2"
        assert found() == {"1": {"id": 1, "big": "another"}}

    def test_soft_deletes(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch, soft_delete=True)
        sink.prepare(DELIVERY)
        rows = [change(0, "c", 1, {"id": 1, "v": 1}), change(1, "c", 2, {"id": 2}), change(2, "d", 1, None)]
        for _ in range(2):
            write(sink, *rows)
            assert documents(opensearch, f"{sink.id}-orders") == {"1": {"id": 1, "_is_deleted": True}, "2": {"id": 2}}
        deliver(sink, change(3, "c", 1, {"id": 1, "v": 2}))
        assert documents(opensearch, f"{sink.id}-orders")["1"] == {"id": 1, "v": 2}

    def test_a_truncate_is_refused_and_keeps_no_other_back(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch)
        sink.prepare(DELIVERY)
        rows = (change(0, "c", 1, {"id": 1}), change(1, "t", None, None), change(2, "c", 2, {"id": 2}))
        [refused] = write(sink, *rows).rejected
        assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/1")
        assert "truncates: delete" in refused.error.hint
        assert set(documents(opensearch, f"{sink.id}-orders")) == {"1", "2"}
        assert not write(sink.model_copy(update={"truncates": "keep"}), *rows).rejected

    def test_a_truncate_that_deletes(self, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """In pages, and again: what came behind it stays."""
        monkeypatch.setattr(truncating, "_AT_ONCE", 3)
        sink = sink_of(opensearch, truncates="delete")
        sink.prepare(DELIVERY)
        before = [*(change(seq, "c", seq, {"n": seq}) for seq in range(8)), *moved(8, 7, 9, {"n": 9})]
        rows = [*before, change(10, "t", None, None), change(11, "c", 3, {"n": 11}), change(12, "t", None, None)]
        deliver(sink, *rows, change(13, "c", 4, {"n": 13}))
        for _ in range(2):
            assert documents(opensearch, f"{sink.id}-orders") == {"4": {"n": 13}}
            write(sink, *rows)

    def test_a_change_without_a_place_is_unroutable(self, opensearch: OpenSearchServer, sink: OpenSearchSink) -> None:
        rows = [change(0, "c", None, {"id": 1}), {**change(1, "c", 2, {}), "table": "Orders"}, change(2, "c", 3, {})]
        errors = [each.error for each in write(sink, *rows).rejected]
        assert [error.code for error in errors] == ["sink.unroutable"] * 2
        assert "no key" in errors[0].message
        assert "capital" in errors[1].message
        assert set(documents(opensearch, f"{sink.id}-orders")) == {"3"}

    def test_an_id_that_is_too_long_is_refused(self, sink: OpenSearchSink) -> None:
        [refused] = write(sink, {**change(0, "c", 1, {}), "key": json.dumps({"id": "ž" * 300})}).rejected
        assert refused.error.code == "sink.rejected"


class TestRefused:
    def test_one_document_of_many(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch, mapping={"properties": {"n": {"type": "integer"}}})
        sink.prepare(DELIVERY)
        rows = [change(seq, "c", seq, {"n": seq if seq % 7 else "hunter2"}) for seq in range(30)]
        errors = [each.error for each in write(sink, *rows).rejected]
        assert [error.where for error in errors] == [f"public.orders at 0/{seq:X}" for seq in range(0, 30, 7)]
        assert {error.code for error in errors} == {"sink.rejected"}
        assert "mapper_parsing_exception" in errors[0].message
        assert not any("hunter2" in str(error) + error.hint for error in errors), "values are nobody's to show"
        assert set(documents(opensearch, f"{sink.id}-orders")) == {str(seq) for seq in range(30) if seq % 7}

    def test_a_document_that_a_later_attempt_can_write_is_not_newer_than_it_is(
        self, opensearch: OpenSearchServer
    ) -> None:
        """Rows 1 and 2 are refused at first. Row 2 is changed behind that."""
        sink = sink_of(opensearch)
        sink.prepare(DELIVERY)
        rows = [change(id, "u", id, {"v": "first"}) for id in range(3)] + [change(3, "u", 2, {"v": "second"})]
        refused = [row | {"key": None} if row["seq"] in (1, 2) else row for row in rows]
        assert len(write(sink, *refused).rejected) == 2
        write(sink, *rows)
        assert documents(opensearch, f"{sink.id}-orders") == {
            "0": {"v": "first"},
            "1": {"v": "first"},
            "2": {"v": "second"},
        }

    def test_a_request_that_is_too_large_is_cut(self, opensearch: OpenSearchServer) -> None:
        """The server takes 30 MiB at once. One document of more is refused, and the others go on."""
        opaque = {"properties": {"v": {"type": "object", "enabled": False}}}
        sink = sink_of(opensearch, batch_bytes="400MiB", mapping=opaque)
        sink.prepare(DELIVERY)
        rows = [change(seq, "c", seq, f'{{"v": "{"x" * (size << 20)}"}}') for seq, size in enumerate((12, 12, 31, 12))]
        [refused] = write(sink, *rows).rejected
        assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/2")
        ask(opensearch, "POST", f"/{sink.id}-orders/_refresh")
        assert ask(opensearch, "GET", f"/{sink.id}-orders/_count")["count"] == 3


class TestVersions:
    def test_an_older_span_after_a_newer_one(self, sink: OpenSearchSink, found: Any) -> None:
        old = [change(0, "c", 1, {"v": "old"}), change(1, "c", 2, {"v": "old"})]
        deliver(sink, *old)
        deliver(sink, change(2, "u", 1, {"v": "new"}), change(3, "d", 2, None))
        assert not write(sink, *old).rejected
        assert found() == {"1": {"v": "new"}}
        assert sink.mark(DELIVERY, LOG) == 4

    def test_somebody_elses_newer_document_stops(self, sink: OpenSearchSink, opensearch: OpenSearchServer) -> None:
        deliver(sink, change(0, "c", 1, {"v": "mine"}))
        path = f"/{sink.id}-orders/_doc/1?version={1 << 60}&version_type=external"
        ask(opensearch, "PUT", path, {"v": "theirs"})
        with pytest.raises(SinkError) as failure:
            write(sink, change(1, "u", 1, {"v": "mine"}))
        assert (failure.value.code, decide(failure.value)) == ("sink.version_ahead", Action.STOP)
        assert failure.value.where == "public.orders at 0/1"

    def test_a_new_log_is_newer(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, *(change(seq, "u", seq % 3, {"n": seq}) for seq in range(50)))
        assert sink.mark(DELIVERY, "log-2") == 0
        deliver(sink, change(0, "r", 0, {"n": 100}), change(1, "d", 1, None), log="log-2")
        assert found() == {"0": {"n": 100}, "2": {"n": 47}}
        assert (sink.mark(DELIVERY, "log-2"), sink.mark(DELIVERY, LOG)) == (2, 0)

    def test_a_log_that_was_followed_by_another_does_not_come_back(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, change(0, "c", 1, {"log": 1}))
        deliver(sink, change(0, "r", 1, {"log": 2}), log="log-2")
        with pytest.raises(SinkError) as failure:
            write(sink, change(1, "u", 1, {"log": 1}))
        assert failure.value.code == "sink.version_ahead"
        assert found() == {"1": {"log": 2}}

    def test_marks_that_were_deleted_are_noticed(self, sink: OpenSearchSink, opensearch: OpenSearchServer) -> None:
        deliver(sink, change(0, "c", 1, {"log": 1}))
        deliver(sink, change(0, "r", 1, {"log": 2}), log="log-2")
        ask(opensearch, "DELETE", f"/tailrace-marks/_doc/{DELIVERY.pipeline}%2F{sink.id}")
        with pytest.raises(SinkError) as failure:
            write(sink, change(0, "r", 1, {"log": 3}), log="log-3")
        assert failure.value.code == "sink.version_ahead"

    def test_two_that_move_the_same_mark(self, sink: OpenSearchSink, opensearch: OpenSearchServer) -> None:
        """Whoever is late notices, and looks again."""
        from tailrace.sinks.opensearch.cluster import connected
        from tailrace.sinks.opensearch.marks import Marks

        with connected(sink.access(DELIVERY)) as cluster:
            marks = Marks(cluster, sink.mark_index, DELIVERY, sink.id)
            stale = marks.read()
            marks.claim(Span(LOG, 0, 1))
            with pytest.raises(SinkError) as failure:
                marks._write(stale.of(LOG))
        assert decide(failure.value) is Action.RETRY

    def test_a_dead_letter_is_delivered_though_the_mark_is_beyond_it(self, sink: OpenSearchSink, found: Any) -> None:
        deliver(sink, change(0, "c", 1, {"v": 1}), change(5, "u", 2, {"v": 5}))
        letters = [change(3, "u", 3, {"v": 3}), change(4, "u", 2, {"v": 4})]
        assert not write(sink, *letters, letters=("x", "y")).rejected
        assert found() == {"1": {"v": 1}, "2": {"v": 5}, "3": {"v": 3}}
        assert sink.mark(DELIVERY, LOG) == 6


class TestIndices:
    def test_mapping_and_settings(self, opensearch: OpenSearchServer) -> None:
        mapping = {"dynamic": False, "properties": {"v": {"type": "keyword"}}}
        settings = {"index.number_of_shards": 2, "index.number_of_replicas": 0}
        sink = sink_of(opensearch, mapping=mapping, settings=settings)
        sink.prepare(DELIVERY)
        deliver(sink, change(0, "c", 1, {"v": "a"}))
        [index] = ask(opensearch, "GET", f"/{sink.id}-orders").values()
        assert index["mappings"] == {"dynamic": "false", "properties": {"v": {"type": "keyword"}}}
        told = index["settings"]["index"]
        assert (told["number_of_shards"], told["gc_deletes"]) == ("2", "900000ms")

    def test_a_mapping_is_added_to_an_index_that_is_there(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch, mode="events", mapping={"properties": {"n": {"type": "short"}}})
        ask(opensearch, "PUT", f"/{sink.id}-orders", {"mappings": {"properties": {"id": {"type": "byte"}}}})
        sink.prepare(DELIVERY)
        deliver_changes(sink, [Change(0, 1, 0)])
        properties = ask(opensearch, "GET", f"/{sink.id}-orders")[f"{sink.id}-orders"]["mappings"]["properties"]
        assert (properties["id"], properties["n"]) == ({"type": "byte"}, {"type": "short"})

    def test_a_mapping_that_does_not_fit_stops(self, opensearch: OpenSearchServer) -> None:
        for mapping in ({"properties": {"v": {"type": "nonsense"}}}, {"nonsense": 1}):
            sink = sink_of(opensearch, mapping=mapping)
            sink.prepare(DELIVERY)
            with pytest.raises(SinkError) as failure:
                write(sink, change(0, "c", 1, {"v": "a"}))
            assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
            assert "nonsense" in failure.value.message

    def test_an_index_that_forgets_deletes_too_early_stops(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch)
        ask(opensearch, "PUT", f"/{sink.id}-orders", {})
        sink.prepare(DELIVERY)
        with pytest.raises(SinkError) as failure:
            write(sink, change(0, "c", 1, {"v": "a"}))
        assert failure.value.code == "sink.refused"
        assert "forgets deletes after 60 s" in failure.value.message
        assert _states(sink)["deletes"] == "warn"
        whole = sink.model_copy(update={"index": f"{sink.id}-orders"})
        assert _states(whole)["deletes"] == "fail"
        deliver(sink.model_copy(update={"soft_delete": True}), change(0, "c", 1, {"v": "a"}))
        ask(opensearch, "PUT", f"/{sink.id}-orders/_settings", {"index.gc_deletes": "1h"})
        deliver(sink, change(1, "u", 1, {"v": "b"}))
        assert _states(sink) == dict.fromkeys(("cluster", "marks", "deletes", "durability"), "ok")

    def test_an_index_that_is_not_synced_is_told(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch, settings={"index.translog.durability": "async", "index.number_of_replicas": 0})
        sink.prepare(DELIVERY)
        assert sink.warnings(DELIVERY) == ()
        deliver(sink, change(0, "c", 1, {"v": "a"}))
        assert f"{sink.id}-orders" in sink.warnings(DELIVERY)[0]
        assert _states(sink)["durability"] == "warn"

    def test_a_closed_index_stops_and_a_blocked_one_is_a_wait(self, opensearch: OpenSearchServer) -> None:
        sink = sink_of(opensearch)
        sink.prepare(DELIVERY)
        deliver(sink, change(0, "c", 1, {"v": "a"}))
        ask(opensearch, "PUT", f"/{sink.id}-orders/_settings", {"index.blocks.write": True})
        with pytest.raises(SinkError) as failure:
            write(sink, change(1, "u", 1, {"v": "b"}))
        assert decide(failure.value) is Action.RETRY
        ask(opensearch, "PUT", f"/{sink.id}-orders/_settings", {"index.blocks.write": False})
        ask(opensearch, "POST", f"/{sink.id}-orders/_close")
        with pytest.raises(SinkError) as failure:
            write(sink, change(1, "u", 1, {"v": "b"}))
        assert decide(failure.value) is Action.STOP
        ask(opensearch, "POST", f"/{sink.id}-orders/_open?wait_for_active_shards=1")
        deliver(sink, change(1, "u", 1, {"v": "b"}))
        assert documents(opensearch, f"{sink.id}-orders") == {"1": {"v": "b"}}


def _states(sink: OpenSearchSink) -> dict[str, str]:
    return {check.name: check.state for check in sink.check(Subject("sink"), DELIVERY)}


def _any_change(seq: int, chance: random.Random) -> dict[str, Any]:
    id = chance.randrange(5)
    return change(seq, "d", id, None) if chance.random() < 0.3 else change(seq, "u", id, {"v": seq})


def _folded(log: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for each in log:
        id = str(json.loads(each["key"])["id"])
        rows.pop(id, None)
        if each["after"]:
            rows[id] = json.loads(each["after"])
    return rows


def test_events_are_written_once_however_often_they_come(opensearch: OpenSearchServer) -> None:
    sink = sink_of(opensearch, mode="events")
    changes = versions(0, keys=2, rounds=4)
    sink.prepare(DELIVERY)
    deliver_changes(sink, changes)
    write_changes(sink, changes)
    assert records(opensearch, f"{sink.id}-orders") == [each.value for each in changes]
