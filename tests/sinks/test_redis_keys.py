"""Rows as keys: what a reader of the cache sees."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from tailrace.change import CHANGES
from tailrace.contracts import Span, Written
from tailrace.errors import SinkError
from tailrace.sinks.redis import RedisSink, writer
from tailrace.testing.servers import RedisServer
from tailrace.testing.suites.sinks import DELIVERY, LOG, Change
from tests.sinks.redis_contents import client_of, new_name, sink_of


@pytest.fixture
def prefix() -> str:
    return new_name()


def change(seq: int, op: str, id: int | None, after: dict[str, Any] | str | None, *unchanged: str) -> dict[str, Any]:
    """A row of a batch; `after` may be text."""
    text = after if after is None or isinstance(after, str) else json.dumps(after)
    key = None if id is None else json.dumps({"id": id})
    return {**Change(seq, id or 0, 0).row(), "op": op, "key": key, "after": text, "unchanged": list(unchanged) or None}


def write(sink: RedisSink, prefix: str, *rows: dict[str, Any], letters: tuple[str, ...] = ()) -> Written:
    """With keys as the template `PREFIX:${key.id}` makes them."""
    types = {field.name: field.type for field in CHANGES} | {"value": pa.string(), "event_id": pa.string()}
    names = [*sink.columns(), *(["value"] if sink.wants_value() else [])]
    columns: dict[str, Any] = {name: pa.array([row[name] for row in rows], types[name]) for name in names}
    keys = [None if row["key"] is None else f"{prefix}:{json.loads(row['key'])['id']}" for row in rows]
    columns["record_key"] = pa.array(keys, pa.string())
    return sink.open(DELIVERY, Span(LOG, 0, 1, letters), 0).write(iter([pa.RecordBatch.from_pydict(columns)]))


def cache(server: RedisServer, prefix: str, **options: Any) -> RedisSink:
    return sink_of(server, **{"mode": "set", "key": prefix + ":${key.id}", **options})


def found(server: RedisServer, prefix: str) -> dict[int, Any]:
    """The keys and what they hold, by row."""
    with client_of(server) as client:
        keys: Any = client.keys(f"{prefix}:*")
        read: Any = {"string": client.get, "hash": client.hgetall}
        return {int(key.rpartition(":")[2]): read[client.type(key)](key) for key in keys}


def test_set_holds_the_newest_row(redis: RedisServer, prefix: str) -> None:
    sink = cache(redis, prefix)
    exact = '{"id": 3, "price": 12345678901234567890.10, "tags": []}'
    write(
        sink,
        prefix,
        change(0, "r", 1, {"id": 1, "v": "a"}),
        change(1, "c", 2, {"id": 2, "v": "a"}),
        change(2, "c", 3, exact),
        change(3, "u", 1, {"id": 1, "v": "ž"}),
        change(4, "d", 2, None),
    )
    assert found(redis, prefix) == {1: json.dumps({"id": 1, "v": "ž"}), 3: exact}


def test_set_may_hold_the_record(redis: RedisServer, prefix: str) -> None:
    row = change(0, "c", 1, {"id": 1})
    write(cache(redis, prefix, value="record"), prefix, row)
    assert found(redis, prefix) == {1: row["value"]}


def test_hset_has_the_columns(redis: RedisServer, prefix: str) -> None:
    sink = cache(redis, prefix, mode="hset")
    row = '{"id": 1, "v": "ž\\n", "n": 1.50, "j": {"a": [1, null]}, "b": true, "gone": "x", "nothing": null}'
    write(sink, prefix, change(0, "c", 1, row), change(1, "c", 2, {"id": 2}))
    fields = {"id": "1", "v": "ž\n", "n": "1.50", "j": '{"a": [1, null]}', "b": "true"}
    assert found(redis, prefix) == {1: {**fields, "gone": "x"}, 2: {"id": "2"}}
    write(sink, prefix, change(2, "u", 1, row.replace(', "gone": "x"', "")), change(3, "d", 2, None))
    assert found(redis, prefix) == {1: fields}


def test_hset_of_a_row_with_very_many_columns(redis: RedisServer, prefix: str) -> None:
    row = {f"c{n}": str(n) for n in range(5000)}
    write(cache(redis, prefix, mode="hset"), prefix, change(0, "c", 1, row))
    assert found(redis, prefix) == {1: row}


def test_hset_keeps_what_did_not_come(redis: RedisServer, prefix: str) -> None:
    sink = cache(redis, prefix, mode="hset")
    write(
        sink,
        prefix,
        change(0, "c", 1, {"id": 1, "big": "B", "v": "old", "w": "goes"}),
        change(1, "u", 1, {"id": 1, "v": "new", "w": None}, "big"),
    )
    assert found(redis, prefix) == {1: {"id": "1", "big": "B", "v": "new"}}


@pytest.mark.parametrize("mode", ["set", "hset"])
def test_a_key_never_holds_half_a_row(redis: RedisServer, prefix: str, mode: str) -> None:
    """The sink has no field to keep: there was no key, or it was something else."""
    with client_of(redis) as client:
        client.set(f"{prefix}:2", "somebody's")
        client.hset(f"{prefix}:3", "v", "old")
    sink = cache(redis, prefix, mode=mode)
    rows = [change(id, "u", id, {"id": id, "v": "new"}, "big") for id in (1, 2, 3)]
    write(sink, prefix, *rows)
    assert found(redis, prefix) == {}


def test_del_deletes_the_keys_of_rows_that_change(redis: RedisServer, prefix: str) -> None:
    with client_of(redis) as client:
        for id in range(4):
            client.set(f"{prefix}:{id}", "cached")
    sink = cache(redis, prefix, mode="del")
    write(sink, prefix, change(0, "u", 0, {"id": 0}), change(1, "d", 1, None), change(2, "c", 2, {"id": 2}))
    assert found(redis, prefix) == {3: "cached"}


@pytest.mark.parametrize("mode", ["set", "hset"])
def test_ttl(redis: RedisServer, prefix: str, mode: str) -> None:
    write(cache(redis, prefix, mode=mode, ttl="1h"), prefix, change(0, "c", 1, {"id": 1}))
    write(cache(redis, prefix, mode=mode), prefix, change(0, "c", 2, {"id": 2}))
    with client_of(redis) as client:
        left: Any = client.pttl(f"{prefix}:1")
        assert 3_590_000 < left <= 3_600_000
        assert client.pttl(f"{prefix}:2") == -1


def test_a_truncate_is_refused_and_keeps_no_other_back(redis: RedisServer, prefix: str) -> None:
    rows = (change(0, "c", 1, {"id": 1}), change(1, "t", None, None), change(2, "c", 2, {"id": 2}))
    [refused] = write(cache(redis, prefix), prefix, *rows).rejected
    assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/1")
    assert "truncates: keep" in refused.error.hint
    assert set(found(redis, prefix)) == {1, 2}
    assert not write(cache(redis, prefix, truncates="keep"), prefix, *rows).rejected


def test_messages_and_schema_changes_are_no_rows(redis: RedisServer, prefix: str) -> None:
    rows = [change(seq, op, None, '{"id": 1}') for seq, op in enumerate("ms")]
    assert not write(cache(redis, prefix), prefix, *rows).rejected
    assert found(redis, prefix) == {}


def test_a_row_without_a_key_is_refused(redis: RedisServer, prefix: str) -> None:
    [refused] = write(cache(redis, prefix), prefix, change(0, "c", None, {"id": 1})).rejected
    assert refused.error.code == "sink.unroutable"


def test_a_row_that_is_too_large_is_refused(redis: RedisServer, prefix: str) -> None:
    rows = change(0, "c", 1, "x" * (16 * 1024 * 1024 + 1)), change(1, "c", 2, {"id": 2})
    [refused] = write(cache(redis, prefix), prefix, *rows).rejected
    assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/0")
    assert set(found(redis, prefix)) == {2}


def test_what_is_too_large_for_one_text_may_be_a_hash_or_no_text_at_all(redis: RedisServer, prefix: str) -> None:
    half = "x" * (9 * 1024 * 1024)
    write(cache(redis, prefix, mode="hset"), prefix, change(0, "c", 1, {"a": half, "b": half}))
    assert set(found(redis, prefix)[1]) == {"a", "b"}
    whole = {"a": 2 * half}
    [refused] = write(cache(redis, prefix, mode="hset"), prefix, change(0, "c", 2, whole)).rejected
    assert refused.error.code == "sink.rejected"
    assert not write(cache(redis, prefix, mode="del"), prefix, change(0, "c", 1, whole)).rejected
    assert found(redis, prefix) == {}


def test_a_change_without_an_image_deletes(redis: RedisServer, prefix: str) -> None:
    write(cache(redis, prefix), prefix, change(0, "c", 1, {"id": 1}), change(1, "u", 1, None))
    assert found(redis, prefix) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_repeat_does_not_go_back_in_time(
    redis: RedisServer, prefix: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every attempt, whatever part of the log it repeats, the keys are what they were or newer."""
    monkeypatch.setattr(writer, "_PIECE_ROWS", 3)
    monkeypatch.setattr(writer, "_WINDOW_ROWS", 8)
    chance = random.Random(seed)
    sink = cache(redis, prefix, mode="hset")
    log = [row_of(seq, chance) for seq in range(60)]
    most = 0
    while most < len(log):
        start = chance.randrange(most + 1)
        end = chance.randrange(start + 1, len(log) + 1)
        write(sink, prefix, *log[start:end])
        most = max(most, end)
        assert found(redis, prefix) == folded(log[:most])


def row_of(seq: int, chance: random.Random) -> dict[str, Any]:
    id = chance.randrange(5)
    return change(seq, "d", id, None) if chance.random() < 0.3 else change(seq, "u", id, {"v": str(seq)})


def folded(log: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    rows: dict[int, dict[str, str]] = {}
    for each in log:
        id = json.loads(each["key"])["id"]
        rows.pop(id, None)
        if each["after"]:
            rows[id] = json.loads(each["after"])
    return rows


def test_a_refused_row_that_a_later_attempt_can_write_is_not_newer_than_it_is(redis: RedisServer, prefix: str) -> None:
    """Rows 1 to 3 are refused for their key at first. Row 2 is changed behind that, row 3 deleted."""
    sink = cache(redis, prefix)
    first = [change(id, "u", id, {"v": "first"}) for id in range(5)]
    rows = [*first, change(5, "u", 2, {"v": "second"}), change(6, "d", 3, None), change(7, "u", 4, {"v": "second"})]
    refused = [row | {"key": None} if row["seq"] in (1, 2, 3) else row for row in rows]
    assert len(write(sink, prefix, *refused).rejected) == 3
    assert set(found(redis, prefix)) == {0, 2, 4}
    write(sink, prefix, *rows)
    assert {id: json.loads(text)["v"] for id, text in found(redis, prefix).items()} == {
        0: "first",
        1: "first",
        2: "second",
        4: "second",
    }


def test_a_dead_letter_is_delivered_though_the_mark_is_beyond_it(redis: RedisServer, prefix: str) -> None:
    sink = cache(redis, prefix)
    write(sink, prefix, change(0, "c", 1, {"id": 1}), change(5, "c", 2, {"id": 2}))
    letter = change(3, "u", 3, {"id": 3})
    write(sink, prefix, letter, letters=("x",))
    assert set(found(redis, prefix)) == {1, 2, 3}
    assert sink.keeps == "state"


def test_what_is_needed_for_a_mode(redis: RedisServer, prefix: str) -> None:
    assert not cache(redis, prefix).wants_value()
    assert not cache(redis, prefix, mode="hset").wants_value()
    assert cache(redis, prefix, value="record").wants_value()
    assert cache(redis, prefix).routes() == {"record_key": prefix + ":${key.id}"}
    assert cache(redis, prefix).routed() == {"record_key": "key"}


def test_a_server_without_memory_is_a_wait(redis: RedisServer, prefix: str) -> None:
    sink = cache(redis, prefix)
    with client_of(redis) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(SinkError) as failure:
                write(sink, prefix, change(0, "c", 1, {"id": 1}))
        finally:
            client.config_set("maxmemory", "0")
    assert failure.value.code == "sink.unavailable"
