"""From a parsed document to a model, or to all that is wrong with it, in the document's own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tailrace.config.document import Document, Path, problem_at
from tailrace.config.model import Model
from tailrace.config.problems import DocumentError, Problem, nearest
from tailrace.config.secret import redact
from tailrace.config.shape import keys_at
from tailrace.errors import ConfigError

M = TypeVar("M", bound=Model)


def build(document: Document, model: type[M], problems: Iterable[Problem] = ()) -> M:
    """The model that the document describes. Raises `DocumentError` with `problems` found before and all that
    validation finds, except what follows from a problem already told."""
    told = list(problems)
    try:
        built = model.from_document(document.data)
    except ValidationError as error:
        found = [_problem(document, model, item) for item in error.errors(include_url=False, include_input=False)]
        told += [problem for problem in found if not any(_under(problem, known) for known in told)]
        raise DocumentError(told) from None
    except ConfigError as error:
        told.append(Problem(error.code, redact(error.message), redact(error.hint), error.where, document.file))
        raise DocumentError(told) from None
    if told:
        raise DocumentError(told)
    return built


def _under(problem: Problem, known: Problem) -> bool:
    return problem.path == known.path or problem.path.startswith((f"{known.path}.", f"{known.path}["))


def _problem(document: Document, model: type[Model], item: ErrorDetails) -> Problem:
    path = _document_path(document.data, item["loc"])
    context: Mapping[str, Any] = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            known = keys_at(model, path[:-1], document.data)
            return problem_at(document, path, "config.unknown_key", "unknown key", nearest(str(path[-1]), known))
        case "missing":
            return problem_at(document, path, "config.missing_key", "required key is missing", f"add `{path[-1]}:`")
        case code if code.startswith("config."):
            return problem_at(document, path, code, item["msg"], str(context.get("hint", "")))
        case "union_tag_invalid":
            message = f"unknown {context['discriminator']} '{context['tag']}'"
            return problem_at(
                document, path, "config.invalid_value", message, f"use one of: {context['expected_tags']}"
            )
        case "string_type":
            hint = "put it in quotes, so that it is text"
            return problem_at(document, path, "config.invalid_value", "should be text", hint)
        case _:
            message = item["msg"].removeprefix("Value error, ")
            return problem_at(document, path, "config.invalid_value", message[:1].lower() + message[1:])


def _document_path(data: object, loc: tuple[int | str, ...]) -> Path:
    """`loc` without the members of unions that pydantic puts between the document's own keys."""
    path: list[int | str] = []
    for place, part in enumerate(loc):
        last = place == len(loc) - 1
        if isinstance(data, dict) and (part in data or last):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            path.append(part)
            data = data[part]
    return tuple(path)
