"""A log waits for the sinks that its pipelines have, and for no other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.changelog import Awaited, Bounds, LogWriter, Retention, Subscriber, Subscribers
from tailrace.contracts import Hold
from tailrace.spec import Pipeline, load_pipelines
from tailrace.spec.delivery import CommitPolicy
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.subscriptions import awaited, settle_subscribers
from tailrace.surfaces.cli import app
from tailrace.testing.captures import capture, insert

Make = Callable[..., Pipeline]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "data")


@pytest.fixture
def log(layout: Layout) -> Iterator[LogWriter]:
    """The source's log: 40 offsets over many small files."""
    writer = LogWriter(layout.log("db"), "db", segment_bytes=1500, manifest_bytes=900)
    for number in range(40):
        writer.append(capture([insert(number)], first_xid=number + 1))
    yield writer
    writer.close()


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    """`pipeline(files=True)`: with a sink of this id, and whether it is required."""

    def make(name: str = "shop", source: str = "db", **sinks: bool) -> Pipeline:
        listed = "".join(
            f"\n    - {{type: console, config: {{id: {id}, required: {str(required).lower()}}}}}"
            for id, required in sinks.items()
        )
        file = tmp_path / "pipeline.yaml"
        file.write_text(
            f"metadata: {{name: {name}}}\nspec:\n  source:\n    type: postgres\n    config: "
            f"{{id: {source}, dsn: postgresql://localhost/db, tables: [a]}}\n  sinks:{listed}\n"
        )
        return load_pipelines([file])[0]

    return make


def subscribers(layout: Layout) -> list[Subscriber]:
    return sorted(Subscribers(layout.log("db")).all(), key=lambda each: each.name)


def test_a_sink_that_is_gone_is_released_with_its_tables_and_told(
    layout: Layout, log: LogWriter, pipeline: Make
) -> None:
    known = Subscribers(layout.log("db"))
    for name in ("shop/files", "shop/old", "shop/old/public.a", "other/old"):
        known.report(name, 3, required=True)
    told = settle_subscribers(pipeline(files=True), layout)
    assert sorted(text.split(maxsplit=1)[0] for text in told) == ["shop/old", "shop/old/public.a"]
    assert subscribers(layout) == [
        Subscriber("other/old", 3, required=True),
        Subscriber("shop/files", 3, required=True),
        Subscriber("shop/old", 3, required=False, released=True),
        Subscriber("shop/old/public.a", 3, required=False, released=True),
    ]
    holders = Retention(layout.log("db")).enforce(Bounds(max_bytes=0)).holders
    assert [each.name for each in holders] == ["other/old", "shop/files"]
    assert settle_subscribers(pipeline(files=True), layout) == told


def test_the_command_that_is_told_forgets_it(layout: Layout, log: LogWriter, pipeline: Make) -> None:
    Subscribers(layout.log("db")).report("shop/old/public.it's", 3, required=True)
    [told] = settle_subscribers(pipeline(files=True), layout)
    [command] = re.findall(r"tailrace (log forget .*)", told)
    done = CliRunner().invoke(app, [*shlex.split(command), "--yes"])
    assert (done.exit_code, subscribers(layout)) == (0, []), done.stderr


@pytest.mark.parametrize("required", [True, False])
def test_a_sink_that_comes_back_holds_again_from_its_place(
    required: bool, layout: Layout, log: LogWriter, pipeline: Make
) -> None:
    Subscribers(layout.log("db")).report("shop/files", 3, required=required)
    settle_subscribers(pipeline(renamed=required), layout)
    assert settle_subscribers(pipeline(files=required), layout) == ()
    assert subscribers(layout) == [Subscriber("shop/files", 3, required=required)]


def test_one_that_missed_what_was_dropped_is_forgotten_and_told(layout: Layout, log: LogWriter, pipeline: Make) -> None:
    Subscribers(layout.log("db")).report("shop/old", 3, required=True)
    settle_subscribers(pipeline(files=True), layout)
    Retention(layout.log("db")).enforce(Bounds(max_bytes=0))
    [told] = settle_subscribers(pipeline(files=True), layout)
    assert "shop/old is forgotten" in told
    assert subscribers(layout) == [] and settle_subscribers(pipeline(files=True), layout) == ()


def test_a_sink_that_became_optional_holds_no_longer_and_neither_do_its_tables(
    layout: Layout, log: LogWriter, pipeline: Make
) -> None:
    known = Subscribers(layout.log("db"))
    for name in ("shop/lake", "shop/lake/public.a"):
        known.report(name, 3, required=True)
    assert settle_subscribers(pipeline(lake=False), layout) == ()
    assert [each.required for each in subscribers(layout)] == [False, False]
    settle_subscribers(pipeline(lake=True), layout)
    assert [each.required for each in subscribers(layout)] == [True, True]


def test_a_disabled_sink_keeps_its_place_and_holds_nothing(layout: Layout, log: LogWriter, pipeline: Make) -> None:
    Subscribers(layout.log("db")).report("shop/files", 3, required=True)
    document = pipeline(files=True, screen=True)
    [entry, other] = document.spec.sinks
    disabled = entry.config.model_copy(update={"enabled": False})
    spec = document.spec.model_copy(update={"sinks": (entry.model_copy(update={"config": disabled}), other)})
    document = document.model_copy(update={"spec": spec})
    assert settle_subscribers(document, layout) == ()
    assert subscribers(layout) == [Subscriber("shop/files", 3, required=False)]
    assert [sink.id for sink in document.sinks] == ["screen"]
    assert [entry.type for entry in document.entries] == ["console"]
    settle_subscribers(pipeline(files=True, screen=True), layout)
    assert subscribers(layout) == [Subscriber("shop/files", 3, required=True)]


@pytest.mark.parametrize(
    ("policy", "holds", "waits_for"),
    [
        ({}, {"a": (True, 0), "b": (True, 0), "c": (False, 0)}, Awaited(("shop/a", "shop/b"), 2)),
        (
            {"mode": "all"},
            {"a": (True, 0), "b": (True, 0), "c": (True, 0)},
            Awaited(("shop/a", "shop/b", "shop/c"), 3),
        ),
        (
            {"mode": "quorum", "quorum": 1},
            {"a": (True, 1), "b": (True, 1), "c": (False, 1)},
            Awaited(("shop/a", "shop/b"), 1),
        ),
    ],
)
def test_the_commit_policy_says_who_is_waited_for(
    policy: dict[str, object], holds: dict[str, tuple[bool, int]], waits_for: Awaited, pipeline: Make
) -> None:
    document = pipeline(a=True, b=True, c=False)
    spec = document.spec.model_copy(update={"commit_policy": CommitPolicy.model_validate(policy)})
    document = document.model_copy(update={"spec": spec})
    assert {sink.id: document.hold(sink) for sink in document.sinks} == {id: Hold(*hold) for id, hold in holds.items()}
    assert awaited(document) == waits_for


def test_where_no_sink_is_required_all_are_waited_for(pipeline: Make) -> None:
    assert awaited(pipeline(a=False, b=False)) == Awaited(("shop/a", "shop/b"), 2)


def test_a_pipeline_that_reads_another_source_holds_only_that(layout: Layout, log: LogWriter, pipeline: Make) -> None:
    Subscribers(layout.log("db")).report("shop/files", 3, required=True)
    [told] = settle_subscribers(pipeline(source="elsewhere", files=True), layout)
    assert "the log db waits for it no longer" in told


def test_without_any_log_there_is_nothing_to_settle(layout: Layout, pipeline: Make) -> None:
    assert settle_subscribers(pipeline(files=True), layout) == ()
