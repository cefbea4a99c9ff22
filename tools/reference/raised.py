"""What the code can raise: code, message and hint of every error that it makes, read from its syntax.

A text that is only known at run time is shown as `…`. Names are followed to what they stand for: variables of the
function, constants of a module, parameters to what each caller gives for them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

UNKNOWN = "…"
CODE = re.compile(r"[a-z]+\.[a-z_]+")
DEPTH = 4
"""How many callers are followed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Raised:
    """An error as it is made somewhere; `kind` is the class of it."""

    code: str
    kind: str
    message: str
    hint: str


@dataclass(frozen=True, eq=False)
class Module:
    """A source file."""

    name: str
    tree: ast.Module

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions and methods by their name."""
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, Function)}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Function | None]]:
        """Every call, with the innermost function that it is in."""
        return list(_calls(self.tree, None))

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """What a name was imported as: module and name there."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return {each.asname or each.name: (node.module or "", each.name) for node in nodes for each in node.names}


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: in a function, called from another scope with these arguments."""

    module: Module
    function: Function | None
    arguments: Mapping[str, ast.expr] = field(default_factory=dict)
    caller: Scope | None = None


class Code:
    """A tree of source files."""

    def __init__(self, root: Path) -> None:
        files = sorted(root.rglob("*.py"))
        made = (Module(_name(root, file), ast.parse(file.read_text())) for file in files)
        self.modules = {module.name: module for module in made}

    def raised(self) -> list[Raised]:
        """Each error once, by code and message."""
        found = {error for module in self.modules.values() for error in self._made_in(module)}
        return sorted(found, key=lambda error: (error.code, error.message, error.hint, error.kind))

    def _made_in(self, module: Module) -> Iterator[Raised]:
        for call, function in module.calls:
            kind = _called(call)
            if not (kind.endswith("Error") or kind in ("Problem", "Finding")) or len(call.args) < 2:  # noqa: PLR2004
                continue
            hint = next((each.value for each in call.keywords if each.arg == "hint"), _at(call.args, 2))
            for scope in self._scopes(module, function, [*call.args[:2], *([hint] if hint else [])]):
                code, message = (self.text(each, scope) for each in call.args[:2])
                spelled = self.text(hint, scope) if hint else ""
                if kind == "PydanticCustomError":
                    message, spelled = self._filled(message, hint, scope)
                if CODE.fullmatch(code):
                    yield Raised(code, kind, _line(message), _line(spelled))

    def _filled(self, template: str, context: ast.expr | None, scope: Scope) -> tuple[str, str]:
        """Pydantic's own errors have a template, and a mapping for its holes that has the hint too."""
        while isinstance(context, ast.Name) and (found := _assigned(scope.function, context.id, context.lineno)):
            context = found[-1]
        if not isinstance(context, ast.Dict):
            return template, ""
        keys = [each.value if isinstance(each, ast.Constant) else None for each in context.keys]
        values = {str(key): self.text(value, scope) for key, value in zip(keys, context.values, strict=True)}
        return re.sub(r"\{(\w+)\}", lambda hole: values.get(hole[1], UNKNOWN), template), values.get("hint", "")

    def _scopes(
        self, module: Module, function: Function | None, needed: Sequence[ast.expr], depth: int = DEPTH
    ) -> Iterator[Scope]:
        """The ways to get to a function that matter to these expressions: one for each caller whose arguments they
        have."""
        used = _parameters_in(function, needed)
        sites = list(self._sites(module, function)) if function and used and depth else []
        if function is None or not sites:
            yield Scope(module, function)
            return
        for where, call, outer in sites:
            given = {name: value for name, value in _bound(call, function).items() if name in used}
            for caller in self._scopes(where, outer, list(given.values()), depth - 1):
                yield Scope(module, function, given, caller)

    def _sites(self, module: Module, function: Function) -> Iterator[tuple[Module, ast.Call, Function | None]]:
        for where in self.modules.values():
            known = where is module or where.imported.get(function.name) == (module.name, function.name)
            for call, outer in where.calls if known else ():
                if _called(call) == function.name and outer is not function:
                    yield where, call, outer

    def text(self, node: ast.expr, scope: Scope, depth: int = 20) -> str:
        """What an expression says, as far as that is known before it runs."""
        if not depth:
            return UNKNOWN
        match node:
            case ast.Constant(str(value)):
                return value
            case ast.JoinedStr(values):
                return "".join(self.text(each, scope, depth - 1) for each in values)
            case ast.FormattedValue(value):
                return self.text(value, scope, depth - 1)
            case ast.BinOp(left, ast.Add(), right):
                return self.text(left, scope, depth - 1) + self.text(right, scope, depth - 1)
            case ast.IfExp(_, body, orelse):
                both = [text for each in (body, orelse) if (text := self.text(each, scope, depth - 1))]
                return " or: ".join(dict.fromkeys(both))
            case ast.Name(name):
                return self._named(name, node.lineno, scope, depth)
            case ast.Call():
                return self._returned(node, scope, depth)
            case _:
                return UNKNOWN

    def _named(self, name: str, line: int, scope: Scope, depth: int) -> str:
        if name in scope.arguments and scope.caller:
            return self.text(scope.arguments[name], scope.caller, depth - 1)
        if name in _parameters(scope.function):
            return UNKNOWN
        if found := _assigned(scope.function, name, line):
            return " or: ".join(dict.fromkeys(self.text(each, scope, depth - 1) for each in found))
        module, name = self._home(scope.module, name)
        constants = _set_in(module.tree, name) if module else []
        return self.text(constants[0][0], Scope(module, None), depth - 1) if module and constants else UNKNOWN

    def _returned(self, call: ast.Call, scope: Scope, depth: int) -> str:
        """What a function of ours gives, if it has a single `return`."""
        module, name = self._home(scope.module, _called(call))
        function = module.functions.get(name) if module else None
        returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
        if module is None or function is None or len(returns) != 1 or returns[0].value is None:
            return UNKNOWN
        return self.text(returns[0].value, Scope(module, function, _bound(call, function), scope), depth - 1)

    def _home(self, module: Module, name: str) -> tuple[Module | None, str]:
        """The module that defines a name, and its name there."""
        if name not in module.imported:
            return module, name
        home, original = module.imported[name]
        return self.modules.get(home), original


def _calls(node: ast.AST, function: Function | None) -> Iterator[tuple[ast.Call, Function | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function
        yield from _calls(child, child if isinstance(child, Function) else function)


def _called(call: ast.Call) -> str:
    """The last word of what is called."""
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _parameters(function: Function | None) -> list[str]:
    if function is None:
        return []
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _parameters_in(function: Function | None, nodes: Sequence[ast.expr]) -> set[str]:
    """The parameters that expressions of a function have, also through its variables."""
    waiting, seen = [name for node in nodes for name in _names(node)], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [inner for value, _ in _set_in(function, name) for inner in _names(value)]
    return seen & set(_parameters(function))


def _names(node: ast.expr) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def _assigned(function: Function | None, name: str, line: int) -> list[ast.expr]:
    """What a variable may hold at a line of its function: the last assignment that every way there passes, and those
    in branches after it."""
    before = [(value, block) for value, block in _set_in(function, name) if value.lineno <= line]
    certain = [place for place, (_, block) in enumerate(before) if line in block]
    return [value for value, _ in before[certain[-1] if certain else 0 :]]


def _set_in(place: ast.AST | None, name: str) -> list[tuple[ast.expr, range]]:
    """What a variable of a function, or a constant of a module, is set to, and the lines of the block where."""
    found: list[tuple[ast.expr, range]] = []
    for block in _blocks(place):
        lines = range(block[0].lineno, (block[-1].end_lineno or 0) + 1)
        for statement in block:
            found += [(value, lines) for value in _values(statement, name)]
    return sorted(found, key=lambda each: each[0].lineno)


def _blocks(place: ast.AST | None) -> Iterator[list[ast.stmt]]:
    """Statements that follow each other, on every level."""
    for node in ast.walk(place) if place is not None else ():
        for part in ("body", "orelse", "finalbody"):
            block = getattr(node, part, None)
            if isinstance(block, list) and block:
                yield block


def _values(statement: ast.stmt, name: str) -> Iterator[ast.expr]:
    """What a statement sets a name to; `a, b = …, …` sets two."""
    if not isinstance(statement, ast.Assign):
        return
    [target, *_], value = statement.targets, statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    yield from (value for target, value in pairs if isinstance(target, ast.Name) and target.id == name)


def _bound(call: ast.Call, function: Function) -> dict[str, ast.expr]:
    """The arguments of a call by the names of the parameters."""
    names = [name for name in _parameters(function) if name not in ("self", "cls")]
    named = {each.arg: each.value for each in call.keywords if each.arg}
    return dict(zip(names, call.args, strict=False)) | named


def _at(values: Sequence[ast.expr], place: int) -> ast.expr | None:
    return values[place] if place < len(values) else None


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _name(root: Path, file: Path) -> str:
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
