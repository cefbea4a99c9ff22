"""Jars from the Maven repository, fetched once by the Ivy that PySpark ships, and kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.java import QUICK, java_home, with_one_collector

_RETRY_AFTER_SECONDS = (2, 6)
_FETCH_HINT = (
    "check the network and run the same command again; behind a private certificate authority, "
    "set JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE"
)
_IVY_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tailrace" module="fetched"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org={group} name={artifact} rev={revision} transitive={transitive} conf="default->{conf}">
      {wanted}
    </dependency>
    {excluded}
  </dependencies>
</ivy-module>
"""


def fetch_jars(
    group: str,
    artifact: str,
    revision: str,
    classifier: str | None = None,
    transitive: bool = True,
    present: Collection[str] = (),
) -> Path:
    """The folder that holds the jar and, when `transitive`, all it needs to run; fetched when not there yet. Modules
    with a name in `present`, and what only they need, are left out: they are on the class path already.

    Safe to call from several processes at once: one fetches, the others wait and find the result. A fetch
    that dies leaves nothing behind that a later call would take for complete.
    """
    name = "-".join(filter(None, (artifact, revision, classifier, None if transitive else "alone", _digest(present))))
    target = cache_directory() / "jars" / name
    if target.exists():
        return target
    with locked("jars"):
        if not target.exists():
            _say(f"fetching {artifact} {revision} (once)")
            _fetch(target, _ivy_module(group, artifact, revision, classifier, transitive, present))
    return target


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time holds the cache's lock `name`; the kernel releases it when its holder dies."""
    path = cache_directory() / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` in one step when the block succeeds, and is removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    draft.chmod(0o755)
    try:
        yield draft
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fetch(target: Path, module: str) -> None:
    with replacing(target) as draft, tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(module)
        file.flush()
        for pause in _RETRY_AFTER_SECONDS:
            if _run_ivy(Path(file.name), draft).returncode == 0:
                return
            _say(f"the fetch failed, trying again in {pause} s")
            time.sleep(pause)
        last = _run_ivy(Path(file.name), draft)
        if last.returncode != 0:
            raise SetupError(
                "environment.fetch_failed",
                f"{target.name} could not be fetched:\n{last.stdout[-1500:]}{last.stderr[-1500:]}",
                hint=_FETCH_HINT,
            )


def _run_ivy(module: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [str(java_home() / "bin" / "java"), *with_one_collector(QUICK).split(), "-jar", str(_ivy_jar())]
    command += ["-cache", str(cache_directory() / "ivy"), "-m2compatible", "-ivy", str(module)]
    command += ["-confs", "default", "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    found = sorted(folder.glob("ivy-*.jar"))
    if not found:
        raise SetupError("environment.pyspark", "PySpark's jars were not found", hint="pip install pyspark")
    return found[-1]


def _digest(names: Collection[str]) -> str:
    """Tells folders apart that lack different modules."""
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:8] if names else ""


def _ivy_module(
    group: str, artifact: str, revision: str, classifier: str | None, transitive: bool, present: Collection[str]
) -> str:
    name = quoteattr(artifact)
    wanted = f'<artifact name={name} type="jar" ext="jar" m:classifier={quoteattr(classifier)}/>' if classifier else ""
    return _IVY_MODULE.format(
        group=quoteattr(group),
        artifact=name,
        revision=quoteattr(revision),
        transitive=quoteattr(str(transitive).lower()),
        conf="master,runtime" if transitive else "master",
        wanted=wanted,
        excluded="".join(f"<exclude module={quoteattr(each)}/>" for each in sorted(present)),
    )


def _say(line: str) -> None:
    print(f"tailrace: {line} ...", file=sys.stderr, flush=True)


def machine() -> str:
    """The processor's name as Maven artifacts spell it."""
    return {"x86_64": "amd64", "aarch64": "arm64v8"}.get(platform.machine(), platform.machine())
