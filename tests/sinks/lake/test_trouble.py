"""One table's trouble: it is overcome, or it halts that table and no other, with a reason."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import datetime

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from tailrace.contracts import Span
from tailrace.errors import LogError, SinkError
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.target import Target
from tailrace.sinks.lake.trouble import of_the_sink
from tailrace.testing.feed import schema_of
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]
FINE = schema_of(1, "fine", {"id": "bigint"}, relation=1)
NUMBERS = schema_of(2, "numbers", {"id": "bigint", "j": "jsonb"}, relation=2)
LARGE = schema_of(3, "large", {"id": "bigint", "t": "text", "ts": "text[]"}, relation=3)
STAMPS = schema_of(4, "stamps", {"id": "bigint"}, relation=4)
LATER = schema_of(
    5,
    "stamps",
    {"id": "bigint", "at": "timestamp without time zone", "ats": "timestamp without time zone[]"},
    relation=4,
)
NOON = datetime(2024, 1, 1, 12)


def test_values_beyond_a_parsers_limits_and_types_that_come_later(lake: MakeLake) -> None:
    """jsonb prints 1e1000 with all its digits. Each value goes through an insert and a merge."""
    table, many, large = lake(), "1" + "0" * 1000, "x" * 25_000_000
    table.feed.add(NUMBERS, "c", {"id": 1}, after=f'{{"id":1,"j":{many}}}')
    table.feed.add(LARGE, "c", {"id": 1, "t": large, "ts": [large]})
    table.feed.add(STAMPS, "c", {"id": 1})
    table.keep()
    assert table.rows("public__numbers") == [{"id": 1, "j": many}]
    table.feed.add(NUMBERS, "u", {"id": 1}, after=f'{{"id":1,"j":[{many},1e1000]}}')
    table.feed.add(LARGE, "u", {"id": 1, "t": large + "y", "ts": [large]})
    table.feed.evolve(LATER, {"at": "2024-01-01T12:00:00.000000"})
    table.feed.add(LATER, "c", {"id": 2, "at": None, "ats": ["2024-01-01T12:00:00.000000"]})
    table.keep()
    assert table.keeper.warnings() == ()
    assert table.rows("public__numbers") == [{"id": 1, "j": f"[{many},1e1000]"}]
    [sizes] = table.sql("SELECT length(t) t, length(ts[0]) ts FROM {}", "public__large")
    assert sizes == {"t": len(large) + 1, "ts": len(large)}
    assert table.rows("public__stamps") == [{"id": 1, "at": NOON, "ats": None}, {"id": 2, "at": None, "ats": [NOON]}]


def test_what_fails_in_one_table_halts_that_table_alone(lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody thought of, when a table is opened, made or written. The next start tries again."""
    table = lake()
    kept = schema_of(6, "kept", {"id": "bigint", "_tailrace_kept": "text"}, relation=6)
    bare = schema_of(7, "bare", {}, (), relation=7)
    odd = schema_of(8, "odd", {"id": "bigint"}, relation=8)
    unopened = schema_of(9, "unopened", {"id": "bigint"}, relation=9)
    table.feed.add(kept, "c", {"id": 1, "_tailrace_kept": "a"}).add(bare, "c", {}).add(odd, "c", {"id": 1})
    table.feed.add(unopened, "c", {"id": 1}).add(FINE, "c", {"id": 1})
    append, target = Target.append, type(table.sink).target

    def fail_odd(self: Target, rows: DataFrame, mark: int) -> None:
        append(self, rows, mark // 0 if "odd" in self._name else mark)

    def fail_unopened(self: LakeSink, spark: SparkSession, name: str, owner: str) -> Target:
        nothing: dict[str, str] = {}
        return target(self, spark, nothing[name] if "unopened" in name else name, owner)

    with monkeypatch.context() as broken:
        broken.setattr(Target, "append", fail_odd)
        broken.setattr(type(table.sink), "target", fail_unopened)
        table.keep()
    assert table.rows("public__fine") == [{"id": 1}]
    halted = {each.partition(" ")[0]: each for each in table.keeper.warnings()}
    assert set(halted) == {"public.kept", "public.bare", "public.odd", "public.unopened"} == set(table.feed.retained)
    assert "has a column _tailrace_kept, a name the sink needs" in halted["public.kept"]
    assert "public.bare has no columns" in halted["public.bare"]
    assert "public.odd cannot be written: " in halted["public.odd"]
    assert "then start again: it catches up" in halted["public.unopened"]
    table.feed.add(FINE, "c", {"id": 2})
    table.keep()
    table.again()
    assert len(table.rows("public__fine")) == 2
    assert table.rows("public__odd") == table.rows("public__unopened") == [{"id": 1}]
    assert {each.partition(" ")[0] for each in table.keeper.warnings()} == {"public.kept", "public.bare"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PySparkRuntimeError("java.io.IOException: No space left on device"), "disk.full"),
        (PySparkRuntimeError("Caused by: java.net.ConnectException: Connection refused"), "sink.unavailable"),
        (OSError(errno.ENOSPC, "no space"), "disk.full"),
        (SinkError("sink.unavailable", "away"), "sink.unavailable"),
        (LogError("log.expired", "gone"), "log.expired"),
        (PySparkRuntimeError("java.lang.OutOfMemoryError: Java heap space"), ""),
        (PySparkRuntimeError('Parcel: tailrace-error:{"code": "log.corrupt"}'), ""),
        (Py4JNetworkError("Answer from Java side is empty"), ""),
        (FileNotFoundError("of the log"), ""),
    ],
)
def test_what_concerns_every_table_is_the_sinks(error: Exception, code: str) -> None:
    raised = of_the_sink(error, "lake")
    assert raised is not None and getattr(raised, "code", "") == code


@pytest.mark.parametrize(
    "error",
    [
        PySparkRuntimeError("[PARSE_SYNTAX_ERROR] CREATE TABLE `lake`.`ConnectException` ()"),
        PySparkRuntimeError("[UNSUPPORTED_FEATURE] of this table"),
        SinkError("sink.unfit_value", "too long"),
        SinkError("sink.anything_else", "of a table"),
        KeyError("a bug"),
        ZeroDivisionError(),
    ],
)
def test_anything_else_is_the_tables(error: Exception) -> None:
    assert of_the_sink(error, "lake") is None


def test_a_store_that_is_away_halts_no_table(lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake()
    table.feed.add(FINE, "c", {"id": 1})

    def away(self: Target, *given: object) -> None:
        raise PySparkRuntimeError("java.net.UnknownHostException: bucket")

    with monkeypatch.context() as broken:
        broken.setattr(Target, "append", away)
        broken.setattr(Target, "existing", away)
        with pytest.raises(SinkError) as failure:
            table.keep()
    assert failure.value.code == "sink.unavailable" and table.feed.retained == {}
    table.keeper.keep(Span(table.feed.log_id, 0, 1))
    assert table.rows("public__fine") == [{"id": 1}]
