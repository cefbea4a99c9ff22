"""The keys of the pipeline and platform documents, as their models have them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from tailrace.config import Model
from tailrace.contracts.entries import ConnectorEntry, ProcessorEntry
from tailrace.registry import PROCESSORS, SINKS, SOURCES, Shelf
from tailrace.spec import Pipeline, Platform, later
from tailrace.spec.pipeline import SinkEntry, SourceEntry
from tools.reference.markdown import code, page, slug, table
from tools.reference.types import models_in, type_words

HEAD = ("key", "type", "default", "meaning")
ENTRY_PAGES: dict[type[ConnectorEntry], str] = {
    SourceEntry: "sources.md",
    SinkEntry: "sinks.md",
    ProcessorEntry: "processors.md",
}
LEGEND = """
A size is a number of bytes, written `64MiB` or `64MB`. A duration is written `50ms`, `5s`, `10m`, `2h` or `7d`. A
template may have [holes](../pipeline.md#variables) that each change fills. A key may be left out unless it is
**required**; where the default is empty, the meaning says what follows.
"""


@dataclass(frozen=True)
class Section:
    """What a heading is about: the models that may stand at a key, of which the document chooses one by `type`."""

    heading: str
    models: tuple[type[Model], ...]

    @property
    def link(self) -> str:
        return f"[{self.heading}](#{slug(self.heading)})"


def pipeline_page() -> str:
    intro = "What is carried from where to where. [The documents](../pipeline.md) has an example."
    return page("Pipeline document", intro, LEGEND, *sections([Section("The document", (Pipeline,))]), _planned())


def platform_page() -> str:
    intro = "On what pipelines run: one optional document for all of them, named by `--platform-config`."
    return page("Platform document", intro, LEGEND, *sections([Section("The document", (Platform,))]))


def source_page() -> str:
    intro = "The `config` of `spec.source`, by its `type`."
    return page("Sources", intro, LEGEND, *sections(_connectors(SOURCES)))


def sink_page() -> str:
    intro = "The `config` of each of `spec.sinks`, by its `type`."
    return page("Sinks", intro, LEGEND, *sections(_connectors(SINKS)))


def processor_page() -> str:
    intro = "What stands beside the `type` of a processor. [Processors](../processors.md) has examples."
    return page("Processors", intro, LEGEND, *sections(_connectors(PROCESSORS)))


def sections(first: Sequence[Section]) -> Iterator[str]:
    """These sections, and one for each model that their keys lead to, on any level; each once, under its first name."""
    known = {section.models: section for section in reversed(first)}
    waiting = list(first)
    while waiting:
        section = waiting.pop(0)
        for name, models in _inner(section):
            if models not in known:
                known[models] = Section(name, models)
                waiting.append(known[models])
        yield _section(section, known)


def _connectors(shelf: Shelf) -> list[Section]:
    """Those of this repository: others, which an environment may have, are not ours to describe."""
    return [Section(name, shelf.load(name).alternatives()) for name in sorted(shelf.built_in)]


def _inner(section: Section) -> Iterator[tuple[str, tuple[type[Model], ...]]]:
    for model in section.models:
        for name, field in () if issubclass(model, SourceEntry | SinkEntry | ProcessorEntry) else _fields(model):
            if models := models_in(field.rebuild_annotation()):
                yield name, models


def _section(section: Section, known: dict[tuple[type[Model], ...], Section]) -> str:
    parts = [f"## {section.heading}"]
    if known[section.models] != section:
        return "\n\n".join([*parts, f"{known[section.models].link} by another name."])
    for model in section.models:
        if len(section.models) > 1:
            parts.append(f"### {_told_apart(model)}")
        parts += [inspect.getdoc(model) or "", _body(model, known)]
    return "\n\n".join(part for part in parts if part)


def _told_apart(model: type[Model]) -> str:
    """What a document chooses the model by."""
    if "type" in model.model_fields:
        return f"type: {model.model_fields['type'].default}"
    [mode] = get_args(model.model_fields["mode"].annotation)
    return f"mode: {mode}"


def _body(model: type[Model], known: dict[tuple[type[Model], ...], Section]) -> str:
    if issubclass(model, SourceEntry | SinkEntry | ProcessorEntry):
        return _entry(model)
    return table(HEAD, (_row(name, field, known) for name, field in _fields(model)))


def _entry(model: type[ConnectorEntry]) -> str:
    """The connectors that may stand at `type`, with the page that has their `config`."""
    file = ENTRY_PAGES[model]
    rows = (
        (code(section.heading), f"[{section.heading}]({file}#{slug(section.heading)})", _first_line(section.models[0]))
        for section in _connectors(model.shelf)
    )
    if model is ProcessorEntry:
        return "`{type: …, …}`: `type` chooses the processor, which says what stands beside it.\n\n" + table(
            ("type", "keys", "what it is"), rows
        )
    return "`{type: …, config: …}`: `type` chooses the connector, which says what `config` has.\n\n" + table(
        ("type", "config", "what it is"), rows
    )


def _fields(model: type[Model]) -> list[tuple[str, FieldInfo]]:
    """Required keys first, the id before all; then those of the model itself, then those of its bases."""
    bases = [base for base in model.__mro__ if base is not Model]

    def rank(name: str) -> tuple[bool, bool, int]:
        owner = next(n for n, base in enumerate(bases) if name in base.__annotations__)
        return not model.model_fields[name].is_required(), name != "id", owner

    names = sorted(model.model_fields, key=rank)
    return [(model.model_fields[name].alias or name, model.model_fields[name]) for name in names]


def _row(name: str, field: FieldInfo, known: dict[tuple[type[Model], ...], Section]) -> tuple[str, ...]:
    kind = field.rebuild_annotation()
    models = models_in(kind)
    inner = known[models].link if models else ""
    return code(name), type_words(kind, inner), _default(field, kind), _meaning(field, models)


def _meaning(field: FieldInfo, models: tuple[type[Model], ...]) -> str:
    text = field.description or (_first_line(models[0]) if models else "")
    examples = ", ".join(code(_spelled(example)) for example in field.examples or ())
    return f"{text} Example: {examples}" if examples else text


def _default(field: FieldInfo, kind: Any) -> str:
    """As a document would write it; nothing where absent means something that no value says."""
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True)
    plain = TypeAdapter(kind).dump_python(default, mode="json", exclude_defaults=isinstance(default, Model))
    return "" if plain is None or (plain == {} and isinstance(default, Model)) else code(_spelled(plain))


def _spelled(value: object) -> str:
    """A value as YAML has it in one line."""
    match value:
        case str():
            return value
        case dict():
            return "{" + ", ".join(f"{key}: {_spelled(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_spelled, value)) + "]"
        case float():
            return f"{value:g}"
        case _:
            return json.dumps(value)


def _first_line(model: type[Model]) -> str:
    return (inspect.getdoc(model) or "").partition("\n\n")[0]


def _planned() -> str:
    """What is refused today, by name."""
    places = {"spec": later.SPEC, "spec.batch": later.BATCH}
    places |= {f"source `{name}`": keys for name, keys in later.SOURCE.items()}
    places |= {f"sink `{name}`": keys for name, keys in later.SINK.items()}
    rows = (
        (place, code(key), ", ".join(code(_spelled(value)) for value in accepted))
        for place, keys in places.items()
        for key, accepted in keys.items()
    )
    intro = (
        "Keys of features that are not there yet are refused with `config.not_yet`, except for values that say what "
    )
    return f"## Planned\n\n{intro}happens today.\n\n" + table(("in", "key", "accepted today"), rows)
