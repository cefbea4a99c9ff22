"""Edits of row images: what is touched is as asked for, and everything else byte for byte what it was."""

from __future__ import annotations

import json
import random
import re
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from tailrace import json_members
from tailrace.processors import images, texts
from tailrace.processors.flatten import leaves
from tailrace.processors.images import DROP, RENAME, REPLACE, Editor
from tests.compiled import digests
from tests.processors.documents import NAMES, document, plain


def edited(
    text: str | None,
    *,
    rename: dict[str, str] | None = None,
    drop: tuple[str, ...] = (),
    keep: tuple[str, ...] | None = None,
    replace: dict[str, str] | None = None,
    tail: str | None = None,
) -> str | None:
    """One image, edited. Names with a `/` are paths."""
    editor = Editor()
    gone = editor.slot(DROP)
    root = editor.paths.root(gone if keep is not None else -1)
    kept = editor.slot(0)
    for name in keep or ():
        editor.paths.add(root, name.split("/"), kept)
    for name in drop:
        editor.paths.add(root, name.split("/"), gone)
    for name, other in (rename or {}).items():
        action = RENAME | (REPLACE if name in (replace or {}) else 0)
        editor.paths.add(root, name.split("/"), editor.slot(action, other))
    slots = {}
    for name in replace or {}:
        if name not in (rename or {}):
            slots[name] = editor.slot(REPLACE)
            editor.paths.add(root, name.split("/"), slots[name])
        else:
            slots[name] = 2 + list(rename or {}).index(name)
    found = editor(pa.array([text], pa.string()), np.array([root]))
    places = {name: found.of_slots([slot]) for name, slot in slots.items()}
    values = [(at, pa.array([(replace or {})[name]] * len(at), pa.string())) for name, at in places.items()]
    [made] = editor.apply(found, values, None if tail is None else pa.array([tail])).to_pylist()
    return made


@pytest.mark.parametrize("module", [json_members, images, leaves, texts])
def test_the_cached_functions_have_those_of_today(module: ModuleType) -> None:
    assert digests(module) == module.INLINED, f"write INLINED = {digests(module)} into {module.__name__}"


def test_a_member_is_renamed_where_it_stands() -> None:
    assert edited('{"id":1,"é":1.10,"z":{"id":2}}', rename={"id": 'n"'}) == '{"n\\"":1,"é":1.10,"z":{"id":2}}'
    assert edited('{"a": 1, "b" : 2}', rename={"b": "a", "a": "b"}) == '{"b": 1, "a" : 2}'


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (("a",), '{ "b":2, "c" : 3 }'),
        (("b",), '{ "a": 1 ,"c" : 3 }'),
        (("c",), '{ "a": 1 ,"b":2 }'),
        (("a", "b"), '{ "c" : 3 }'),
        (("b", "c"), '{ "a": 1 }'),
        (("a", "c"), '{ "b":2 }'),
        (("a", "b", "c"), "{  }"),
        (("x",), '{ "a": 1 ,"b":2, "c" : 3 }'),
    ],
)
def test_members_are_dropped_with_one_comma_each(drop: tuple[str, ...], left: str) -> None:
    assert edited('{ "a": 1 ,"b":2, "c" : 3 }', drop=drop) == left


def test_what_is_not_kept_goes() -> None:
    assert edited('{"a":1,"b":{"x": 1},"c":3}', keep=("b",)) == '{"b":{"x": 1}}'
    assert edited('{"a":1}', keep=()) == "{}"


def test_members_inside_json_columns() -> None:
    text = '{"id":1,"j":{"ssn": "1", "k": [{"ssn":2}], "ssn" :3 },"ssn":4}'
    assert edited(text, replace={"j/ssn": '"***"'}) == text.replace('"1"', '"***"').replace(":3 ", ':"***" ')
    assert edited(text, drop=("j/ssn",)) == '{"id":1,"j":{"k": [{"ssn":2}] },"ssn":4}'
    assert edited(text, drop=("id", "j/k"), rename={"j/ssn": "x"}) == '{"j":{"x": "1", "x" :3 },"ssn":4}'
    assert edited(r'{"j":{"\u0073s\u006e":"x"}}', replace={"j/ssn": "1"}) == r'{"j":{"\u0073s\u006e":1}}'


def test_a_tail_is_added_behind_the_last_member() -> None:
    assert edited('{"a":1}', tail='"t":"x"') == '{"a":1,"t":"x"}'
    assert edited("{}", tail='"t":1,"u":2') == '{"t":1,"u":2}'
    assert edited('{"a":1,"b":2 }', drop=("b", "a"), tail='"t":1') == '{ "t":1}'
    assert edited('{"a":1}', tail="") == '{"a":1}'
    assert edited(None, tail='"t":1', drop=("a",)) is None


def test_renamed_and_replaced_at_once() -> None:
    assert edited('{"a": 1,"b":2}', rename={"a": "x"}, replace={"a": '"***"'}) == '{"x": "***","b":2}'


def test_many_images_and_slices() -> None:
    """More members than there is room for at first, nulls, an array that begins in the middle of another."""
    editor = Editor()
    root = editor.paths.root(editor.slot(RENAME, "all"))
    rows = [None if n % 7 == 0 else "{" + ",".join(f'"k{k}":{n}' for k in range(n % 9)) + "}" for n in range(500)]
    found = editor(pa.array(rows, pa.string()).slice(13), np.full(487, root))
    expected = [row and re.sub(r'"k\d+"', '"all"', row) for row in rows[13:]]
    assert editor.apply(found).to_pylist() == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_documents_against_an_oracle(seed: int) -> None:
    chance = random.Random(seed)
    print("seed", seed)
    for _ in range(100):
        text = document(chance, 2, blank=chance.random() < 0.5)
        names = chance.sample(NAMES, 5)
        drop, rename, replace = tuple(names[:2]), {names[2]: "new", names[3]: "x\ty"}, {names[4]: "[1, 2]"}
        made = edited(text, drop=drop, rename=rename, replace=replace, tail='"tail":0')
        assert made is not None
        expected = [
            (rename.get(name, name), replace.get(name, value))
            for name, value in json_members.split(text).items()
            if name not in drop
        ]
        assert list(json_members.split(made).items()) == [*expected, ("tail", "0")], (text, names)
        assert plain(made) is not None
        json.loads(made)
