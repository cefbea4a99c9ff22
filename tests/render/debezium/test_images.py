"""Every value as Debezium has it: against what it was recorded to write, and against a slow oracle."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tailrace.errors import ProcessorError
from tailrace.kinds import Kind
from tailrace.render.debezium import kernel, values
from tailrace.render.debezium.images import Images
from tailrace.render.debezium.semantics import connect, encoding_of
from tailrace.schema import Column, TableSchema
from tests.render.debezium.oracle import MADE

BOUNDS = os.environ.get("NUMBA_BOUNDSCHECK") == "1"
SEEDS = range(5 if BOUNDS else 40)
RECORDED = json.loads(Path(__file__).with_name("recorded_values.json").read_text())
HERE = Path(__file__)


def images(*columns: Column) -> Images:
    return Images(TableSchema(1, "shop", "public", "things", columns, ()), columns)


def rewritten(layout: Images, *texts: str | None, unchanged: list[list[str] | None] | None = None) -> list[Any]:
    """The images as Debezium has them, read."""
    unsent = None if unchanged is None else pa.array(unchanged, pa.list_(pa.string()))
    made = layout.rewritten(pa.array(texts, pa.string()), unsent).to_pylist()
    return [None if text is None else json.loads(text) for text in made]


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, and of one sign."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("case", RECORDED["values"], ids=lambda case: f"{case['type']}-{case['native'][:20]}")
def test_a_value_is_what_debezium_wrote(case: dict[str, Any]) -> None:
    """`debezium` is recorded; `here` is there where we say something else, which docs/envelopes.md declares."""
    column = Column("v", case["type"], kind=Kind.parse(case["kind"]))
    (image,) = rewritten(images(column), f'{{"v":{case["native"]}}}')
    expected = case.get("here", case["debezium"])
    assert same(image.get("v", "OMITTED"), expected), image


@pytest.mark.parametrize("case", RECORDED["schemas"], ids=lambda case: str(case["type"]))
def test_a_schema_is_what_debezium_wrote(case: dict[str, Any]) -> None:
    encoding = encoding_of(Column("v", case["type"], kind=Kind.parse(case["kind"])))
    assert connect(encoding.schema, optional=True, field="v") == case["schema"]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables_are_what_the_oracle_says(seed: int) -> None:
    chance = random.Random(seed)
    types = chance.choices(list(MADE), k=chance.randint(1, 12))
    columns = tuple(Column(f'c{n} "ž"', spelled) for n, spelled in enumerate(types))
    texts, expected = [], []
    for _ in range(50):
        found = {c.name: ("null", None) if chance.random() < 0.1 else MADE[c.type](chance) for c in columns}
        order = chance.sample(sorted(found), len(found)) if chance.random() < 0.3 else list(found)
        blank = chance.choice(["", "", " ", "\t "])
        members = (
            f"{blank}{json.dumps(name, ensure_ascii=False)}{blank}:{blank}{found[name][0]}{blank}" for name in order
        )
        texts.append("{" + ",".join(members) + "}")
        expected.append({name: value for name, (_, value) in found.items()})
    made = rewritten(images(*columns), *texts)
    for text, image, wanted in zip(texts, made, expected, strict=True):
        assert list(image) == list(wanted)
        for name in wanted:
            assert same(image[name], wanted[name]), (seed, name, text)


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_and_sliced_batches_give_the_same(seed: int) -> None:
    chance = random.Random(seed)
    columns = tuple(Column(f"c{n}", spelled) for n, spelled in enumerate(MADE))
    layout = images(*columns)
    rows = [
        None
        if chance.random() < 0.2
        else "{" + ",".join(f'"{column.name}":{MADE[column.type](chance)[0]}' for column in columns) + "}"
        for _ in range(30)
    ]
    whole = pa.array(rows, pa.string())
    expected = layout.rewritten(whole).to_pylist()
    cut = chance.randint(0, len(rows))
    pieces = (whole.slice(0, cut), whole.slice(cut))
    assert [text for piece in pieces for text in layout.rewritten(piece).to_pylist()] == expected


def test_columns_that_an_image_lacks_have_what_debezium_puts_there() -> None:
    columns = [Column("id", "integer", nullable=False)]
    columns += [Column(f"n{n}", spelled) for n, spelled in enumerate(MADE)]
    columns += [Column(f"r{n}", spelled, nullable=False) for n, spelled in enumerate(MADE)]
    (image,) = rewritten(images(*columns), '{"id":1}')
    assert {image[f"n{n}"] for n in range(len(MADE))} == {None}
    required = {spelled: image[f"r{n}"] for n, spelled in enumerate(MADE)}
    assert required == required | {
        "bigint": 0,
        "boolean": False,
        "double precision": 0.0,
        "numeric": {"scale": 0, "value": "AA=="},
        "numeric(10,2)": "AA==",
        "money": "AA==",
        "text": "",
        "jsonb": "",
        "bytea": "",
        "date": 0,
        "time with time zone": "00:00:00Z",
        "timestamp with time zone": "1970-01-01T00:00:00Z",
        "interval": 0,
        "text[]": [],
    }


def test_columns_that_were_not_sent_have_the_placeholder() -> None:
    word = "__debezium_unavailable_value"
    types = ("text", "jsonb", "bytea", "integer[]", "text[]", "uuid[]", "bytea[]", "numeric", "boolean[]")
    columns = [Column(f"c{n}", spelled, nullable=False) for n, spelled in enumerate(types)]
    names = [column.name for column in columns]
    first, second, third = rewritten(
        images(*columns), "{}", '{"c0":"x"}', None, unchanged=[names, ["c1", "elsewhere"], None]
    )
    data = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    numbers, uuid = list(word.encode()), "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
    assert list(first.values()) == [word, word, data, numbers, [word], [uuid], [data], None, None]
    assert (second["c0"], second["c1"], second["c2"], third) == ("x", word, "", None)


def test_an_image_with_members_that_are_no_columns_keeps_what_it_has() -> None:
    layout = images(Column("id", "integer"), Column("at", "date"), Column("shape", "box"))
    (image,) = layout.rewritten(pa.array(['{"made" : {"a":1.10} ,"at":"1970-01-02", "shape":"x"}'])).to_pylist()
    assert image == '{"made":{"a":1.10},"at":1,"shape":"x"}'


def test_a_column_that_a_processor_changed_follows_its_kind() -> None:
    masked = Column("total", "numeric(10,2)", kind=Kind("text"))
    domain = Column("price", "price", kind=Kind("decimal", 10, 2, domain=True))
    made = Column("made", "", kind=Kind.parse("array<date>"))
    (image,) = rewritten(images(masked, domain, made), '{"total":"***","price":"1.01","made":["1970-01-02",null]}')
    assert image == {"total": "***", "price": "ZQ==", "made": [1, None]}


def test_json_that_is_null_is_a_value_where_null_cannot_be() -> None:
    (image,) = rewritten(images(Column("a", "jsonb", nullable=False), Column("b", "jsonb")), '{"a":null,"b":null}')
    assert image == {"a": "null", "b": None}


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        ("numeric(10,2)", '"***"'),
        ("numeric(10,2)", '"1.005"'),
        ("date", '"XXXX-01-02"'),
        ("timestamp without time zone", '"soon"'),
        ("interval", '"***"'),
        ("point", '"***"'),
        ("bit(8)", '"***"'),
    ],
)
def test_a_value_that_is_none_of_its_type_is_refused_without_being_told(spelled: str, text: str) -> None:
    with pytest.raises(ProcessorError) as refused:
        rewritten(images(Column("v", spelled)), f'{{"v":{text}}}')
    assert refused.value.code == "processor.unfit_value"
    assert refused.value.where == "public.things"
    assert text.strip('"') not in str(refused.value)


@pytest.mark.parametrize("module", [kernel, values])
def test_the_cached_kernel_has_the_functions_of_today(module: ModuleType) -> None:
    """Of every file whose functions or numbers are compiled into it."""
    file = Path(module.__file__ or "")
    imported = set(re.findall(r"^from tailrace\.render\.debezium\.(\w+) import", file.read_text(), re.MULTILINE))
    digests = {name: hashlib.sha256(file.with_name(f"{name}.py").read_bytes()).hexdigest()[:16] for name in imported}
    assert digests == module.INLINED, f"write INLINED = {digests} into {file.name}"


@pytest.mark.timeout(400)  # it compiles the kernel anew
@pytest.mark.skipif(BOUNDS, reason="this is the run it starts")
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
