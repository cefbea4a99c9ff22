"""What somebody begins with who writes a connector of their own: a small package that works and is tested.

`sink.py` and `suite.py` are what is written, with other names in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tailrace import __version__
from tailrace.errors import ConfigError, SetupError
from tailrace.machine.space import full_disk
from tailrace.registry import SINKS

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_LONGEST = 40

_PROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{package}"
version = "0.1.0"
description = "A sink of Tailrace: {name}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["tailrace>={version}"]

[project.optional-dependencies]
test = ["pytest>=8.3"]

[project.entry-points."tailrace.sinks"]
{name} = "{module}:{sink}"
"""
_README = """\
# {package}
A sink of Tailrace, `type: {name}` in a pipeline: say here where changes go, and how it absorbs a repeat.
`pip install -e '.[test]'` installs it beside Tailrace, and `pytest` shows whether it keeps what every sink promises.
"""


@dataclass(frozen=True)
class NewSink:
    """A package that was written: the `type` it gives to documents, its folder, and its module."""

    name: str
    folder: Path
    module: Path

    @property
    def test(self) -> Path:
        return self.folder / f"test_{self.module.name}"


def new_sink(name: str, into: Path) -> NewSink:
    """Write a package for a sink into a new folder of `into`. Raises `ConfigError` where the name cannot be one, or the
    folder is there."""
    _check_name(name)
    package = f"tailrace-sink-{name.replace('_', '-')}"
    module = package.replace("-", "_")
    sink = "".join(map(str.capitalize, re.split("[_-]", name))) + "Sink"
    made = NewSink(name, into / package, into / package / f"{module}.py")
    told = {"name": name, "package": package, "module": module, "sink": sink, "version": __version__}
    code = _template("sink.py").replace("LineSink", sink)
    suite = _template("suite.py").replace("tailrace.scaffold.sink", module).replace("LineSink", sink)
    files = {
        made.folder / "pyproject.toml": _PROJECT.format(**told),
        made.folder / "README.md": _README.format(**told),
        made.module: code,
        made.test: suite,
    }
    _write(made.folder, files)
    return made


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            "config.invalid_value",
            f"'{name}' is no name of a sink",
            hint=f"use small letters, digits, and single dashes or underscores between them, {_LONGEST} at most",
        )
    if name in SINKS.names() or name in SINKS.later:
        raise ConfigError(
            "config.name_taken",
            f"there is a sink type '{name}' already, or it is planned",
            hint="use a name of your own, such as one that begins with your company's",
        )


def _template(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _write(folder: Path, files: dict[Path, str]) -> None:
    try:
        folder.mkdir(parents=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(
            "config.exists", f"{folder} is there already", hint="remove it, or choose another name or --into"
        ) from None
    except OSError as error:
        if full_disk(error) is not None:
            raise
        raise SetupError(
            "setup.unwritable", f"{error.filename}: {error.strerror}", hint="choose another place with --into"
        ) from error
