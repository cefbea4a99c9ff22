"""From files to pipelines and a platform. Every problem of every file is reported at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tailrace.config.check import build
from tailrace.config.document import Document, problem_at, read_document
from tailrace.config.expand import expand
from tailrace.config.problems import DocumentError, Problem
from tailrace.spec.later import set_aside
from tailrace.spec.pipeline import Pipeline
from tailrace.spec.platform import Platform


def load_pipelines(paths: Iterable[str | Path], environ: Mapping[str, str] = os.environ) -> list[Pipeline]:
    """The pipelines of these files, in order, checked one by one and against each other."""
    loaded: list[tuple[Document, Pipeline]] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            loaded.append(_load_pipeline(Path(path), environ))
        except DocumentError as error:
            problems += error.problems
    problems += _conflicts(loaded)
    if problems:
        raise DocumentError(problems)
    return [pipeline for _, pipeline in loaded]


def load_platform(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> Platform:
    """The platform of this file, or the defaults where there is none."""
    if path is None:
        return Platform()
    document, problems = expand(read_document(Path(path)), Platform, environ)
    return build(document, Platform, problems)


def read_pipeline(document: Document, environ: Mapping[str, str] = os.environ) -> Pipeline:
    """The pipeline of a document that is parsed already."""
    return _read_pipeline(document, environ)[1]


def _load_pipeline(path: Path, environ: Mapping[str, str]) -> tuple[Document, Pipeline]:
    return _read_pipeline(read_document(path), environ)


def _read_pipeline(document: Document, environ: Mapping[str, str]) -> tuple[Document, Pipeline]:
    document, unfilled = expand(document, Pipeline, environ)
    document, planned = set_aside(document, Pipeline)
    pipeline = build(document, Pipeline, [*unfilled, *planned])
    return document, pipeline.read_from(document.file) if document.file else pipeline


def _conflicts(loaded: list[tuple[Document, Pipeline]]) -> list[Problem]:
    """Names used twice, and source ids that stand for two different sources."""
    problems: list[Problem] = []
    names: dict[str, str] = {}
    sources: dict[str, tuple[str, Pipeline]] = {}
    for document, pipeline in loaded:
        if pipeline.name in names:
            message = f"the pipeline '{pipeline.name}' is also in {names[pipeline.name]}"
            hint = "rename one of them"
            name = ("metadata", "name")
            problems.append(problem_at(document, name, "config.duplicate_name", message, hint))
        names.setdefault(pipeline.name, document.file)
        file, owner = sources.setdefault(pipeline.source_id, (document.file, pipeline))
        if owner.spec.source != pipeline.spec.source:
            message = f"the source '{pipeline.source_id}' is configured otherwise in {file}"
            hint = "make both equal, to share one tap and log, or give one another id"
            path = ("spec", "source", "config", "id")
            problems.append(problem_at(document, path, "config.source_conflict", message, hint))
    return problems
