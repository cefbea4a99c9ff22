"""`tailrace apply`: make pipelines of a server as their documents say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import LIMIT, Timeout, Wait, connected, limit_of, wait

if TYPE_CHECKING:
    from tailrace.config.document import Document
    from tailrace.surfaces.answers import Applied, Plan, PlanStep
    from tailrace.surfaces.client import Client

LONGEST = 100
"""A value that is longer is cut where it is shown to people."""


def apply(
    files: Annotated[list[Path], typer.Argument(help="Pipeline documents.", metavar="FILE…")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and change nothing.")] = False,
    plan: Annotated[
        str | None, typer.Option(metavar="HASH", help="Apply this plan, as --dry-run printed it, or nothing.")
    ] = None,
    wait_for_it: Wait = False,
    timeout: Timeout = LIMIT,
    as_json: Json = False,
) -> None:
    """Make pipelines of the server as documents say, and run those that are new. It prints each field that changes and
    what that costs. All documents are checked before anything is changed."""
    with guard(as_json):
        limit_s = limit_of(timeout)
        documents = _documents(files, plan)
        with connected() as client:
            plans = [_planned(client, each) for each in documents]
            _refuse_twice(documents, plans)
            if not as_json:
                _say_plans(plans)
            if dry_run:
                _tell_dry_run(plans, as_json)
                return
            applied = [_applied(client, each, plan or made.hash) for each, made in zip(documents, plans, strict=True)]
            if not as_json:
                for done in applied:
                    say(f"{done.pipeline.name}: {done.outcome}, version {done.pipeline.version}")
            ready = [wait(client, each.pipeline, limit_s) for each in applied] if wait_for_it else None
        if as_json:
            say_json({"ok": True, "applied": [each.as_json() for each in applied], **_told(ready)})
            return
        for each in ready or ():
            say(f"{each.name}: {each.status}")


def _told(ready: list[Any] | None) -> dict[str, Any]:
    return {} if ready is None else {"pipelines": [each.as_json() for each in ready]}


def _documents(files: list[Path], plan: str | None) -> list[Document]:
    from tailrace.config.document import read_document
    from tailrace.errors import ConfigError

    if plan is not None and len(files) > 1:
        hint = "apply the documents one by one, each with the hash of its plan"
        raise ConfigError("plan.one_document", "--plan names the plan of one document", hint=hint)
    return [read_document(file) for file in files]


def _refuse_twice(documents: list[Document], plans: list[Plan]) -> None:
    """What the first of two documents of one pipeline made would be undone by the second."""
    from tailrace.config.document import problem_at
    from tailrace.config.problems import DocumentError

    first: dict[str, str] = {}
    for document, plan in zip(documents, plans, strict=True):
        if plan.pipeline in first:
            message = f"the pipeline '{plan.pipeline}' is also in {first[plan.pipeline]}"
            place = ("metadata", "name")
            raise DocumentError([problem_at(document, place, "config.duplicate_name", message, "rename one of them")])
        first[plan.pipeline] = document.file


def _planned(client: Client, document: Document) -> Plan:
    with _placed(document):
        return client.plan(document.data)


def _applied(client: Client, document: Document, plan_hash: str) -> Applied:
    with _placed(document):
        return client.apply(document.data, plan_hash)


@contextmanager
def _placed(document: Document) -> Iterator[None]:
    """The server knows the document without its file: what it finds wrong there gets its file and line."""
    from dataclasses import replace

    from tailrace.config.document import show_path
    from tailrace.config.problems import DocumentError

    try:
        yield
    except DocumentError as error:
        lines = {show_path(path): line for path, line in document.lines.items()}
        placed = [replace(each, file=document.file, line=_line(lines, each.path)) for each in error.problems]
        raise DocumentError(placed) from None


def _line(lines: dict[str, int], path: str) -> int:
    """Of the path, or of the nearest part of the document around it that is written down."""
    around = [each for each in lines if path == each or path.startswith((f"{each}.", f"{each}["))]
    return lines[max(around, key=len)] if around else 1


def _say_plans(plans: list[Plan]) -> None:
    for plan in plans:
        for line in told(plan):
            say(line)


def told(plan: Plan) -> list[str]:
    """A plan in words."""
    if plan.version == 0:
        what = "a new pipeline"
    elif not plan.steps:
        what = f"nothing changes, it is at version {plan.version}"
    else:
        what = f"{len(plan.steps)} of its fields change, from version {plan.version}"
    changes = [_step(step) for step in plan.steps if step.effect != "new"]
    return [f"{plan.pipeline}: {what}", *changes, f"  plan {plan.hash}"]


def _step(step: PlanStep) -> str:
    note = f" ({step.note})" if step.note else ""
    return f"  {step.effect:<8} {step.path}: {_value(step.before)} → {_value(step.after)}{note}"


def _value(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _tell_dry_run(plans: list[Plan], as_json: bool) -> None:
    if as_json:
        say_json({"ok": True, "plans": [each.as_json() for each in plans]})
    else:
        say("nothing was changed; `--plan HASH` applies just this, if nothing else has changed until then")
