"""What decides whether a row that differs is a difference: which changes the source's read had not seen."""

from __future__ import annotations

from pathlib import Path

from tailrace.change import OPS
from tailrace.changelog.touched import Touched
from tailrace.supervisor.verify.report import TableReport, load, save


def touched(*changes: tuple[str, str | None, str | None, str | None]) -> Touched:
    touches = Touched()
    for op, key, after, unchanged in changes:
        touches.add(OPS.index(op), key, after, unchanged)
    return touches


def test_the_last_image_of_a_key_counts() -> None:
    touches = touched(("c", "1", "a", None), ("u", "1", "b", None), ("c", "2", "x", None), ("d", "2", None, None))
    assert (touches.keys, touches.images, touches.partial) == ({"1", "2"}, {"1": "b"}, set())


def test_an_image_that_lacks_columns_says_nothing_until_a_whole_one_comes() -> None:
    assert touched(("u", "1", "a", None), ("u", "1", "b", '["body"]')).images == {}
    assert touched(("u", "1", "b", '["body"]')).partial == {"1"}
    assert touched(("u", "1", "b", '["body"]'), ("u", "1", "c", None)).images == {"1": "c"}
    assert touched(("u", "1", "b", '["body"]'), ("d", "1", None, None)).partial == set()


def test_a_truncate_and_a_change_without_a_key_touch_everything() -> None:
    assert touched(("t", None, None, None)).everything
    assert touched(("c", None, "a", None)).everything
    assert not touched(("s", None, "a", None), ("r", "1", "a", None)).everything


def test_what_was_found_is_kept_per_table(tmp_path: Path) -> None:
    file = tmp_path / "sink" / "verified.json"
    save(file, "log", [TableReport("lake", "public.a", rows=3, offset=9)])
    save(file, "log", [TableReport("lake", "public.b", differences={"extra": 1})])
    kept = load(file)
    assert (kept["public.a"]["equal"], kept["public.a"]["offset"], kept["public.b"]["equal"]) == (True, 9, False)
    assert "shown" not in kept["public.b"]
