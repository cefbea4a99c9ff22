"""What every processor over batches promises. Subclass, give the fixture, and the promises become tests.

    class TestMyProcessor(ProcessorSuite):
        touches = frozenset({"email"})

        @pytest.fixture
        def processor(self) -> MyProcessor:
            return MyProcessor(id="mine", columns=("email",))

No Spark and no database are needed. The changes are those of `SAMPLE`, unless the subclass has a fixture of its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tailrace.change import PROCESSED, event_id
from tailrace.contracts import BatchProcessor, Place
from tailrace.json_members import split
from tailrace.kinds import Kind
from tailrace.processors.chain import Chain, OpenChain
from tailrace.schema import Column, TableSchema

_KINDS = {
    "id": "int64",
    "total": "decimal(12,2)",
    "status": "text",
    "email": "text",
    "details": "json",
    "tags": "array<text>",
}
TABLE = TableSchema(
    id=1,
    database="shop",
    schema="public",
    table="orders",
    columns=tuple(
        Column(name, kind, number=n, kind=Kind.parse(kind)) for n, (name, kind) in enumerate(_KINDS.items(), 1)
    ),
    key=("id",),
)
PLACE = Place(pipeline="shop", tenant="demo", connector="postgresql", tables={TABLE.id: TABLE})
_PLAIN: dict[str, Any] = {
    "lane": 7,
    "source": "shop-db",
    "op": "c",
    "database": "shop",
    "schema": "public",
    "table": "orders",
    "key": '{"id":1}',
    "ts_us": 1_767_225_600_123_456,
    "captured_us": 1_767_225_600_200_000,
    "tx_id": "771",
    "tx_last": False,
    "position": "16/B374D848",
    "schema_id": 1,
}


def batch(*changes: Mapping[str, Any]) -> pa.RecordBatch:
    """Changes from the few fields that a test cares about; the others have plain values, and `seq` counts."""
    unknown = {name for change in changes for name in change} - set(PROCESSED.names)
    assert not unknown, unknown
    rows = [{"seq": n, "tx_ordinal": n, **_PLAIN, **change} for n, change in enumerate(changes)]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in PROCESSED]
    return pa.RecordBatch.from_arrays(columns, schema=PROCESSED)


def _image(number: int, total: str, status: str) -> str:
    """A row as the tap writes it, with digits, blanks and letters that a careless step would lose."""
    who = '{"name":"\\u017dofie","seen": [1, {"x":null}]}'
    details = f'{{"n": 1.10, "big":12345678901234567890 , "who": {who}, "r":{number}}}'
    email = f'"o{number}\\"@example.com"'
    return (
        f'{{"id":{number},"total":"{total}","status":{status},"email":{email},"details":{details},"tags":["a", "b"]}}'
    )


def _key(number: int) -> str:
    return f'{{"id":{number}}}'


_UNSENT = '{"id":4,"total":"5.00","status":"new","email":"x@example.com","tags":[]}'
SAMPLE: tuple[Mapping[str, Any], ...] = (
    {"op": "r", "key": _key(1), "after": _image(1, "12.50", '"new"')},
    {"key": _key(2), "after": _image(2, "0.00", "null")},
    {"op": "u", "key": _key(1), "after": _image(1, "99.90", '"paid"')},
    {"op": "u", "key": _key(2), "before": _image(2, "0.00", "null"), "after": _image(2, "250.00", '"paid"')},
    {"op": "s", "key": None, "before": '{"version": 0}', "after": '{"version": 1}'},
    {"op": "u", "key": _key(4), "after": _UNSENT, "unchanged": ["details"]},
    {"op": "d", "key": _key(2), "before": _image(2, "250.00", '"paid"'), "headers": {"new_key": _key(3)}},
    {"key": _key(3), "after": _image(3, "250.00", '"paid"'), "headers": {"old_key": _key(2)}},
    {"op": "m", "schema": "", "table": "mail.welcome", "key": None, "after": '{"to": "x"}', "schema_id": 2},
    {"op": "d", "key": _key(1)},
    {"op": "t", "key": None, "headers": {"cascade": "true"}},
)
"""Every operation, a key change, a delete that brings its key alone, an update that lacks a column."""


class ProcessorSuite:
    """The promises of `contracts.processing.Step`, as tests."""

    touches: ClassVar[frozenset[str]] = frozenset()
    """Columns whose values or names it changes. All others keep every byte."""
    refuses: ClassVar[frozenset[str]] = frozenset()
    """Of truncates (`t`), messages (`m`) and schema changes (`s`): those that it is set up to drop."""

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        raise NotImplementedError("give a fixture `processor`")

    @pytest.fixture
    def place(self) -> Place:
        return PLACE

    @pytest.fixture
    def changes(self) -> pa.RecordBatch:
        return batch(*SAMPLE)

    def test_its_description_pickles(self, processor: BatchProcessor) -> None:
        assert pickle.loads(pickle.dumps(processor)) == processor

    def test_the_same_changes_again_give_the_same(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        chain = _opened(processor, place)
        assert chain(changes).equals(chain(changes))
        assert chain(changes).equals(_opened(pickle.loads(pickle.dumps(processor)), place)(changes))

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_changes_cut_into_pieces_give_the_same_rows_and_ids(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch, size: int
    ) -> None:
        chain = _opened(processor, place)
        pieces = [chain(changes.slice(at, size)) for at in range(0, changes.num_rows, size)]
        whole = _opened(processor, place)(changes)
        assert pa.Table.from_batches(pieces).to_pylist() == whole.to_pylist()
        assert chain(changes.slice(0, 0)).num_rows == 0

    def test_members_it_does_not_touch_keep_every_byte(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        came = {row["seq"]: row for row in changes.to_pylist()}
        for row in _own(_opened(processor, place)(changes)):
            for image in ("key", "before", "after"):
                was, now = (split(each[image] or "{}") for each in (came[row["seq"]], row))
                for name in was.keys() & now.keys() - self.touches:
                    assert now[name] == was[name], (row["seq"], image, name)

    def test_its_shape_is_that_of_the_rows(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        """As far as it tells, and of tables whose columns are known: a message may have become a row."""
        for row in _opened(processor, place)(changes).to_pylist():
            table = place.tables.get(row["schema_id"])
            shape = processor.shape(table) if table is not None and row["op"] in ("c", "u", "r") else None
            if shape is not None:
                names = [column.name for column in shape.columns]
                assert set(split(row["after"])) | set(row["unchanged"] or []) <= set(names)
                assert not set(split(row["after"])) & set(row["unchanged"] or [])
                assert tuple(split(row["key"])) == shape.key
                assert len(names) == len(set(names))

    def test_what_was_not_sent_stays_so(self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch) -> None:
        """And is told in advance by `unsent`, under the names that it has behind the step."""
        came = {row["seq"]: row for row in changes.to_pylist()}
        for row in _own(_opened(processor, place)(changes)):
            lacking = came[row["seq"]]["unchanged"]
            if lacking:
                told = processor.unsent(lacking, place.tables[row["schema_id"]])
                assert sorted(row["unchanged"] or []) == sorted(told)

    def test_changes_without_a_row_pass(self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch) -> None:
        passes = {"t", "m", "s"} - self.refuses
        came = [row for row in changes.to_pylist() if row["op"] in passes]
        left = [row for row in _own(_opened(processor, place)(changes)) if row["op"] in passes]
        assert [(row["seq"], row["after"]) for row in left] == [(row["seq"], row["after"]) for row in came]

    def test_every_change_that_is_gone_was_counted(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        chain = _opened(processor, place)
        left = _own(chain(changes))
        assert changes.num_rows - len(left) == sum(chain.drops.values())
        assert {drop.processor for drop in chain.drops} <= {processor.id}
        assert all(drop.reason for drop in chain.drops)
        if "rows" in processor.preserves():
            assert not chain.drops

    def test_what_it_makes_is_told_apart(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        rows = _opened(processor, place)(changes).to_pylist()
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        ids = [event_id(row["source"], row["position"], row["tx_ordinal"], row["part"]) for row in rows]
        assert len(set(ids)) == len(ids)
        made = [row for row in rows if row["part"] is not None]
        assert {row["synthetic"] for row in made} <= {processor.id}

    def test_keys_stay_where_it_says_so(self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch) -> None:
        came = {row["seq"]: row["key"] for row in changes.to_pylist()}
        if "key" in processor.preserves():
            for row in _own(_opened(processor, place)(changes)):
                assert row["key"] == came[row["seq"]]

    def test_before_a_mirror_a_row_is_decided_by_its_key_and_after(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        """Whatever the operation, and whatever was there before."""
        if processor.breaks_mirror() is not None:
            return
        rows = [row for row in changes.to_pylist() if row["op"] in ("c", "u", "r") and not row["unchanged"]]
        chain = _opened(processor, replace(place, mirror=True))
        outcomes = [
            _outcomes(chain, [{**row, "op": op, "before": before} for row in rows])
            for op, before in (("c", None), ("u", None), ("u", rows[0]["after"]), ("r", None))
        ]
        assert all(outcome == outcomes[0] for outcome in outcomes)

    def test_before_a_mirror_deletes_truncates_and_schema_changes_pass(
        self, processor: BatchProcessor, place: Place, changes: pa.RecordBatch
    ) -> None:
        if processor.breaks_mirror() is not None:
            return
        came = batch(*(row for row in changes.to_pylist() if row["op"] in ("d", "t", "s")))
        made = _opened(processor, replace(place, mirror=True))(came)
        assert made.column("op").to_pylist() == came.column("op").to_pylist()


def _opened(processor: BatchProcessor, place: Place) -> OpenChain:
    return Chain((processor,)).open(place)


def _own(made: pa.RecordBatch) -> list[dict[str, Any]]:
    """The changes that came in, without what was made of them."""
    rows: list[dict[str, Any]] = made.to_pylist()
    return [row for row in rows if row["part"] is None]


def _outcomes(chain: OpenChain, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """What a table would be told of each row."""
    made = chain(batch(*rows)).to_pylist()
    return [(row["seq"], row["key"], row["after"], row["op"] == "d", row["unchanged"]) for row in made]
