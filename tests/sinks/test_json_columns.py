"""Members of images as columns of texts."""

from __future__ import annotations

import pyarrow as pa

from tailrace.sinks import json_columns


def test_members_as_texts() -> None:
    """Also of images that are spelled otherwise than taps do."""
    plain = ['{"a": "x \\"\\u00e9\\n", "b": -0, "c": {"d":"x" }, "d": null}', '{"a":1.10,"c":"x"}']
    names, documents = ("a", "b", "c", "d"), ("c",)
    found = [each.to_pylist() for each in json_columns.texts(pa.array(plain), names, documents)]
    assert found == [['x "é\n', "1.10"], ["-0", None], ['{"d":"x" }', '"x"'], [None, None]]
    odd = ['{"a": 1, "a": "last", "\\u0062": [1, 2]}']
    found = [each.to_pylist() for each in json_columns.texts(pa.array(odd), names, documents)]
    assert found == [["last"], ["[1, 2]"], [None], [None]]
