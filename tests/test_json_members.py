"""Members of JSON images keep their text."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tailrace.json_members import members, split


@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "12345678901234567890.098765432109876543210",
        '{"b":1,"b":2}',
        "[1, 2 ,[3]]",
        '"a\\"b,}"',
        "1e5",
        "{}",
        "true",
    ],
)
def test_a_member_is_the_text_it_was(text: str) -> None:
    image = f'{{"id":1,"jé\\"x":{text},"z":"}}"}}'
    [found] = members(['jé"x'], only_nested=False)(pa.array([image])).to_pylist()
    assert found == {"c0": text}
    assert json.loads(image)["z"] == "}"


def test_nulls_missing_members_and_slices() -> None:
    images = pa.array(['{"a":1}', None, '{"a":null}', '{"b":"a","a":[1]}', "{}"])
    found = members(["a"], only_nested=False)(images.slice(1)).to_pylist()
    assert found == [{"c0": text} for text in (None, None, "[1]", None)]
    nested = members(["a"], only_nested=True)(images).to_pylist()
    assert nested == [{"c0": text} for text in (None, None, None, "[1]", None)]


def test_members_keep_every_character() -> None:
    text = '{"a":1.10,"b":{"x": [1, 2.0]},"c":"}\\"","d":null,"e":123456789012345678901234567890}'
    assert split(text) == {
        "a": "1.10",
        "b": '{"x": [1, 2.0]}',
        "c": '"}\\""',
        "d": "null",
        "e": "123456789012345678901234567890",
    }
    assert split("{}") == {}
    assert split('{ "a" : 1 ,\n\t"é\\"" : [ {"b": 2} ] }\n') == {"a": "1", 'é"': '[ {"b": 2} ]'}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a', '{"a\\', '{"a"', '{"a":', '{"a":1', '{"a":{"b":1}'])
def test_an_object_that_does_not_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        split(text)
