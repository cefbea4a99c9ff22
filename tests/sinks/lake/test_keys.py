"""A row is found again by its key, whatever the key's type: two keys are the same where the log spells them alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tailrace.sinks.lake.columns import text, type_of
from tailrace.sinks.lake.fold import Reading
from tailrace.sinks.lake.sql import quoted
from tailrace.testing.feed import schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]

KEYS: dict[str, list[str]] = {
    "jsonb": ['{"a": 1.10, "b": [1, null]}', '{"a": 1.1, "b": [1, null]}', "12345678901234567890.5", '"a"'],
    "integer[]": ["[1,null]", "[1,2]", "[null]", "[]"],
    "text[]": ['["a,b",null]', '["null"]', "[null]", '["\\u001f\\"/"]'],
    "double precision": ["-0", "0", '"NaN"', "1e+20"],
    "real": ["-0", "0", '"-Infinity"', "0.1"],
    "double precision[]": ["[-0]", "[0]", '["NaN",-0,null]', "[1e+20]"],
    "bytea": ['"AAH/"', '""', '"AAH+"', '"AA=="'],
    "numeric": ['"1.0"', '"1.00"', '"NaN"', '"1"'],
    "public.ratio": ["-0", "0", "1.5", "1e+20"],
}
"""By type: keys that are easily taken for one another."""


def test_each_spelling_has_one_canonical_text(spark: SparkSession) -> None:
    """Made from the log's text, from a value in the table, and from a column of the table that became text."""
    schema = schema_of(1, "keys", {kind: kind for kind in KEYS}, tuple(KEYS))
    reading = Reading.of(schema, {each.name: type_of(each.kind, variant=False) for each in schema.columns})
    texts = Reading.of(schema, {kind: StringType() for kind in KEYS})
    images = [(_image({kind: keys[place] for kind, keys in KEYS.items()}),) for place in range(4)]
    rows = reading.typed(spark.createDataFrame(images, "key string").select(reading.parsed("key").alias("row")))
    columns = []
    for place, kind in enumerate(KEYS):
        held = text(f"`_v{place}`", reading.types[kind])
        columns += [
            F.expr(reading.canonical(kind, f"row.{quoted(kind)}")),
            F.expr(reading.canonical_here(kind, f"`_v{place}`", None)),
            F.expr(texts.canonical_here(kind, held, None)),
        ]
    found = [list(row) for row in rows.select(*columns).collect()]
    for place, kind in enumerate(KEYS):
        three = [row[3 * place : 3 * place + 3] for row in found]
        assert [len(set(each)) for each in three] == [1] * 4, kind
        assert len({each[0] for each in three}) == 4, kind


Key = dict[str, str]
"""Column → the text it has in the log."""


class Keyed:
    """A table with a key of these types, and a large column that the source may leave out."""

    def __init__(self, table: Lake, kinds: dict[str, str]) -> None:
        self._table, self._feed = table, table.feed
        self._schema = schema_of(1, "keyed", {**kinds, "n": "integer", "big": "text"}, tuple(kinds))

    def put(self, op: str, key: Key, n: int, *, big: bool = True, **more: Any) -> None:
        row = {**key, "n": str(n)} | ({"big": f'"long {n}"'} if big else {})
        unsent = None if big else ["big"]
        self._feed.add(self._schema, op, key=_image(key), after=_image(row), unchanged=unsent, **more)

    def delete(self, key: Key, **more: Any) -> None:
        self._feed.add(self._schema, "d", key=_image(key), before=_image(key), **more)

    def move(self, old: Key, new: Key, n: int, *, big: bool) -> None:
        self.delete(old, headers={"new_key": _image(new)})
        self.put("c", new, n, big=big, headers={"old_key": _image(old)})

    def rows(self) -> list[tuple[int, str]]:
        """What the table has after what was put since the last time."""
        self._table.keep()
        assert self._table.keeper.warnings() == ()
        return [(row["n"], row["big"]) for row in self._table.rows("public__keyed", order="n")]


def _image(members: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{each}' for name, each in members.items()) + "}"


def test_a_key_names_its_row(lake: MakeLake) -> None:
    """Of documents, of arrays with nulls, and of floats."""
    kinds = {"j": "jsonb", "a": "integer[]", "f": "double precision"}
    keys = [{name: KEYS[kind][place] for name, kind in kinds.items()} for place in range(4)]
    minus_zero, zero = keys[0], {**keys[0], "f": "0"}
    _names_its_row(Keyed(lake(), kinds), minus_zero, zero, *keys[2:])


def test_a_key_that_is_a_document_is_text_among_variants(spark: SparkSession, tmp_path: Path) -> None:
    """Variants have no equality, and do not tell 1.10 from 1.1."""
    table = Lake(spark, sink_of("iceberg3", tmp_path, json_as="variant"), tmp_path)
    _names_its_row(Keyed(table, {"j": "jsonb"}), *({"j": key} for key in KEYS["jsonb"]))


def _names_its_row(table: Keyed, first: Key, alike: Key, third: Key, fourth: Key) -> None:
    """In place, moved and deleted; with all columns, and with a large one that the source did not send."""
    table.put("c", first, 1)
    table.put("c", third, 2)
    assert table.rows() == [(1, "long 1"), (2, "long 2")]
    table.move(first, alike, 3, big=False)
    table.put("u", third, 4, big=False)
    table.put("c", fourth, 5)
    assert table.rows() == [(3, "long 1"), (4, "long 2"), (5, "long 5")]
    table.move(alike, first, 6, big=True)
    table.delete(third)
    table.put("u", fourth, 7)
    assert table.rows() == [(6, "long 6"), (7, "long 7")]


def test_a_key_that_its_column_does_not_hold_names_its_row(lake: MakeLake) -> None:
    """It is set aside, and so may be a large value that the source did not send when the row got another key."""
    schema = schema_of(1, "days", {"day": "date", "n": "integer", "big": "numeric(6,2)"}, ("day",))
    table = lake(evolution="lenient")
    feed = table.feed
    feed.add(schema, "c", {"day": "infinity", "n": 1, "big": "NaN"})
    feed.add(schema, "c", {"day": "2024-02-29", "n": 2, "big": "1.25"})
    table.keep()
    feed.add(schema, "u", {"day": "infinity", "n": 3}, unchanged=["big"])
    table.keep()
    feed.move(schema, {"day": "infinity"}, {"day": "-infinity", "n": 4}, unchanged=["big"])
    feed.add(schema, "u", {"day": "2024-02-29", "n": 5, "big": "1.50"})
    table.keep()
    found = [(row["n"], str(row["big"]), row["_unfit"]) for row in table.rows("public__days", "n")]
    assert found == [(4, "None", {"day": "-infinity", "big": "NaN"}), (5, "1.50", {})]
