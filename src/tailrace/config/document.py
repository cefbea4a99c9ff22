"""YAML as configuration needs it: every key knows its line, no key stands twice, and only `true` is true.

Scalars follow the YAML 1.2 core schema: `no`, `on`, `1:30`, `010` and dates are text. Anchors and `<<` work.
A file holds one document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from tailrace.config.problems import DocumentError, Problem
from tailrace.config.secret import redact

Path = tuple[str | int, ...]
"""Where a value stands in a document: keys and list indexes."""

MAX_VALUES = 100_000
"""More values than this is no configuration but aliases that multiply."""


@dataclass(frozen=True)
class Document:
    """Parsed YAML: plain dicts, lists and scalars, and the line of every path."""

    file: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of `path`, or of the nearest parent that is written down."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def with_data(self, data: dict[str, Any]) -> Document:
        """The same places, other values."""
        return Document(self.file, data, self.lines)


def read_document(file: FilePath) -> Document:
    """Read one YAML file. Raises `DocumentError` for what is no readable, single mapping."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _refusal("config.unreadable", f"cannot be read: {reason}", "check the path", str(file)) from None
    return parse_document(text, str(file))


def parse_document(text: str, file: str = "<text>") -> Document:
    """Like `read_document`, for text already at hand."""
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise _syntax(f"not valid YAML: {redact(reason)}", file, line) from None
    except yaml.YAMLError:
        raise _syntax("not valid YAML: a character that YAML does not allow", file) from None
    except RecursionError:
        raise _syntax("nested too deeply", file) from None
    if len(nodes) > 1:
        message, hint = "the file holds more than one document", "put each into a file of its own"
        raise _refusal("config.many_documents", message, hint, file, nodes[1].start_mark.line + 1)
    if not nodes or not isinstance(nodes[0], yaml.MappingNode):
        raise _syntax("the document is not a mapping of keys to values", file)
    reader = _NodeReader(file)
    return Document(file, reader.value(nodes[0], ()), reader.lines)


def show_path(path: Path) -> str:
    """`("spec", "sinks", 0, "type")` as `spec.sinks[0].type`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def problem_at(document: Document, path: Path, code: str, message: str, hint: str = "") -> Problem:
    """A problem at a path of a document. Texts may quote values, so passwords in them are blanked."""
    return Problem(code, redact(message), redact(hint), show_path(path), document.file, document.line(path))


def scalar(text: str) -> Any:
    """What an unquoted YAML scalar means."""
    for tag, pattern in _SCALARS.items():
        if tag != "merge" and pattern.match(text):
            return _typed(tag, text)
    return text


_TAGS = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """The safe loader with the core schema's scalars in place of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_SCALARS = {
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"),
    "float": re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"),
    "merge": re.compile(r"<<\Z"),
}
_KNOWN_TAGS = {*_SCALARS, "str", "seq", "map"}
for _tag, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(f"{_TAGS}{_tag}", _pattern, None)


class _NodeReader:
    """Turns nodes into plain values and notes where each stood."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Path, int] = {}
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(self.lines) > MAX_VALUES or id(node) in self.open:
            raise self._refuse("config.endless_alias", "aliases multiply without end", node, "write them out")
        if node.tag.removeprefix(_TAGS) not in _KNOWN_TAGS:
            raise self._refuse("config.syntax", f"the tag {node.tag} is not supported", node, "remove the tag")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag.endswith(":merge"):
                for part in self._merge_parts(value_node):
                    merged = self._mapping(part, path) | merged
                continue
            key = self._key(key_node)
            if key in found:
                hint = "keep one of them"
                raise self._refuse("config.duplicate_key", f"the key `{key}` stands twice", key_node, hint)
            self.lines[*path, key] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*path, key))
        return merged | found

    def _merge_parts(self, node: yaml.Node) -> list[yaml.Node]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.MappingNode) and id(part) not in self.open for part in parts):
            raise self._refuse("config.syntax", "`<<` takes a mapping", node, "point it at an anchor")
        return list(parts)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not isinstance(self._scalar(node), str):
            raise self._refuse("config.syntax", "a key must be text", node, "put the key in quotes")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return _typed(node.tag.removeprefix(_TAGS), node.value)
        except ValueError:
            raise self._refuse("config.syntax", "not a number", node, "put it in quotes") from None

    def _refuse(self, code: str, message: str, node: yaml.Node, hint: str) -> DocumentError:
        return _refusal(code, message, hint, self.file, node.start_mark.line + 1)


def _typed(tag: str, text: str) -> Any:
    match tag:
        case "bool":
            return text.lower() == "true"
        case "null":
            return None
        case "int":
            return int(text)
        case "float":
            return float(text)
        case _:
            return text


def _syntax(message: str, file: str, line: int = 0) -> DocumentError:
    return _refusal("config.syntax", message, "check quotes, colons and indentation", file, line)


def _refusal(code: str, message: str, hint: str, file: str, line: int = 0) -> DocumentError:
    return DocumentError([Problem(code, message, hint, file=file, line=line)])
