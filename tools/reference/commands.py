"""The command line: its commands, and what their functions say of arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from tailrace.surfaces import cli
from tools.reference.markdown import code, page, table

PLACEHOLDERS = {str: "TEXT", int: "N", float: "N", Path: "PATH"}


def command_page() -> str:
    exit_codes = (inspect.getdoc(cli) or "").rpartition("\n\n")[2]
    return page("Command line", exit_codes, *_commands(cli.app, "tailrace"), *_groups(cli.app))


def _groups(application: typer.Typer) -> Iterator[str]:
    for group in application.registered_groups:
        assert group.typer_instance is not None
        name = f"tailrace {group.name}"
        yield f"## {name}\n\n{group.typer_instance.info.help}"
        yield from _commands(group.typer_instance, name, level=3)


def _commands(application: typer.Typer, before: str, level: int = 2) -> Iterator[str]:
    for command in application.registered_commands:
        assert command.callback is not None
        name = f"{before} {command.name or command.callback.__name__}"
        yield "\n\n".join([f"{'#' * level} {name}", _described(command.callback)])


def _described(function: Callable[..., Any]) -> str:
    """What it does, and a table of what it takes."""
    hints = get_type_hints(function, include_extras=True)
    given = inspect.signature(function).parameters
    rows = [_row(name, hints[name], parameter.default) for name, parameter in given.items()]
    return f"{inspect.getdoc(function)}\n\n" + table(("argument or option", "default", "meaning"), rows)


def _row(name: str, hint: Any, default: object) -> tuple[str, str, str]:
    assert get_origin(hint) is Annotated
    kind, info = get_args(hint)
    assert isinstance(info, ArgumentInfo | OptionInfo)
    shown = "**required**" if default is inspect.Parameter.empty else _default(default)
    if isinstance(info, ArgumentInfo):
        return code(info.metavar or name.upper()), shown, (info.help or "") + _choices(kind)
    return _option(name, kind, info), shown, (info.help or "") + _bounds(info)


def _option(name: str, kind: Any, info: OptionInfo) -> str:
    """Its names, and what stands for its value. Typer keeps the first name where it keeps defaults."""
    names = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    value = _value(kind)
    return ", ".join(code(f"{each} {value}".strip()) for each in names or [f"--{name.replace('_', '-')}"])


def _value(kind: Any) -> str:
    """Nothing for a flag; a list is an option that may be given several times."""
    [plain] = [each for each in get_args(kind) if each is not NoneType] or [kind]
    if get_origin(plain) is list:
        return f"{_value(get_args(plain)[0])} …"
    if isinstance(plain, type) and issubclass(plain, Enum):
        return "|".join(each.value for each in plain)
    return "" if plain is bool else PLACEHOLDERS[plain]


def _bounds(info: OptionInfo) -> str:
    bounds = {"at least": info.min, "at most": info.max}
    words = ", ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
    return f" ({words})" if words else ""


def _choices(kind: Any) -> str:
    names = [code(each.value) for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    return f" One of {', '.join(names)}." if names else ""


def _default(value: object) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "`true`"
        case Enum():
            return code(value.value)
        case _:
            return code(str(value).removesuffix(".0"))
