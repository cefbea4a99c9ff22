"""The pages of `docs/reference` say what the code says, and the tool that makes them finds all of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from tailrace.config import ByteSize, Duration, Envelope, Model, Secret
from tools.reference import PAGES, stale
from tools.reference.keys import Section, sections
from tools.reference.markdown import slug
from tools.reference.raised import Code, Raised

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def test_the_pages_are_what_the_code_says() -> None:
    assert stale(FOLDER) == [], "run `make docs`"


def test_a_page_that_is_old_missing_or_made_by_nothing_is_stale(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "sinks.md").write_text("as it was")
    (tmp_path / "errors.md").unlink()
    (tmp_path / "more.md").touch()
    assert stale(tmp_path) == ["errors.md", "more.md", "sinks.md"]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "errors.md"])
def test_everything_has_a_meaning(name: str) -> None:
    rows = [line for line in PAGES[name]().partition("## Planned")[0].splitlines() if line.startswith("| `")]
    assert rows
    assert not [line for line in rows if line.endswith("|  |")]


class Inner(Model):
    """What is inside."""

    depth: Annotated[int, Field(ge=1, le=9, description="How deep.")] = 3


class Outer(Model):
    """What is outside."""

    size: Annotated[ByteSize, Field(ge=1024, description="How large.", examples=["2KiB"])]
    wait: Annotated[Duration | None, Field(description="How long.")] = None
    kind: Annotated[Literal["a", "b", "c"], Field(description="Which.")] = "a"
    words: Annotated[tuple[str, ...], Field(min_length=1, description="What is said.")] = ("x",)
    token: Annotated[dict[str, int | Secret], Field(description="Who may.")] = Field(default_factory=dict)
    inner: Inner = Inner(depth=5)
    envelope: Annotated[Envelope | None, Field(description="The shape.")] = None


def test_a_key_has_its_type_its_default_and_its_bounds() -> None:
    outer, inner, envelope = sections([Section("outer", (Outer,))])
    assert outer.splitlines()[2:] == [
        "What is outside.",
        "",
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
        "| `size` | size, ≥ 1KiB | **required** | How large. Example: `2KiB` |",
        "| `wait` | duration |  | How long. |",
        "| `kind` | `a`, `b` or `c` | `a` | Which. |",
        "| `words` | list of text, not empty | `[x]` | What is said. |",
        "| `token` | mapping of text to whole number or secret text | `{}` | Who may. |",
        "| `inner` | [inner](#inner) | `{depth: 5}` | What is inside. |",
        "| `envelope` | [envelope](#envelope) |  | The shape. |",
    ]
    assert "| `depth` | whole number, ≥ 1, ≤ 9 | `3` | How deep. |" in inner
    assert "### type: cloudevents" in envelope


def test_what_has_two_names_is_described_under_the_first() -> None:
    first, second = sections([Section("first", (Inner,)), Section("second", (Inner,))])
    assert "What is inside." in first
    assert second == "## second\n\n[first](#first) by another name."


@pytest.mark.parametrize(
    ("raising", "found"),
    [
        (
            'raise SinkError("sink.full", f"{name} is full: {rows} rows", hint="empty it")',
            [Raised("sink.full", "SinkError", "… is full: … rows", "empty it")],
        ),
        (
            'what = "a" if name else "b"; raise LogError("log.gone", "it is " + what, hint=WAY_OUT)',
            [Raised("log.gone", "LogError", "it is a or: b", "look elsewhere")],
        ),
        (
            'raise refused("shut")',
            [Raised("sink.refused", "SinkError", "the door is shut", "knock")],
        ),
        (
            'raise PydanticCustomError("config.x", "no {what}", {"what": "sink", "hint": "add one"})',
            [Raised("config.x", "PydanticCustomError", "no sink", "add one")],
        ),
        ('raise ValueError("not.ours")', []),
    ],
)
def test_what_is_raised_is_read_from_the_syntax(tmp_path: Path, raising: str, found: list[Raised]) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "words.py").write_text('WAY_OUT = "look " "elsewhere"\n')
    (package / "door.py").write_text(
        "from house.words import WAY_OUT\n"
        f"def enter(name):\n    {raising}\n"
        'def refused(why):\n    text = f"the door is {why}"\n'
        '    return SinkError("sink.refused", text, hint="knock")\n'
    )
    others = [Raised("sink.refused", "SinkError", "the door is …", "knock")] if "refused" not in raising else []
    assert Code(package).raised() == sorted([*found, *others], key=lambda error: error.code)


def test_of_two_assignments_the_one_that_is_passed_counts(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "def check(a):\n"
        "    hint = 'first'\n"
        "    if a:\n        hint = 'second'\n        raise LogError('log.a', 'a', hint=hint)\n"
        "    raise LogError('log.b', 'b', hint='third')\n"
    )
    assert [(each.code, each.hint) for each in Code(tmp_path).raised()] == [("log.a", "second"), ("log.b", "third")]


def test_anchors_are_those_of_a_forge() -> None:
    assert slug("A run's files: `x_y`, §2") == "a-runs-files-x_y-2"
