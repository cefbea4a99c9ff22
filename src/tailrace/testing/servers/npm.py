"""Packages of the npm registry, fetched once and kept in the cache. Neither npm nor Node is needed."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tarfile
import time
import urllib.request
from io import BytesIO
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.maven import locked, replacing

REGISTRY = "https://registry.npmjs.org"
"""Unless `$NPM_CONFIG_REGISTRY` says another."""
_RETRY_AFTER_S = (2, 6)
_PATIENCE_S = 120


def fetch_npm(name: str, version: str, sha512: str) -> Path:
    """The folder of a package, without what it depends on; fetched when not there yet. What is fetched has this digest,
    or it is refused. Several processes may call it at once."""
    short = name.rpartition("/")[2]
    target = cache_directory() / "npm" / f"{name.replace('/', '-').lstrip('@')}-{version}"
    if target.exists():
        return target
    with locked("npm"):
        if not target.exists():
            print(f"tailrace: fetching {name} {version} (once) ...", file=sys.stderr, flush=True)
            registry = os.environ.get("NPM_CONFIG_REGISTRY", REGISTRY).rstrip("/")
            _unpack(_checked(_download(f"{registry}/{name}/-/{short}-{version}.tgz"), sha512, name), target)
    return target


def _download(url: str) -> bytes:
    for pause in (*_RETRY_AFTER_S, None):
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
                content: bytes = answer.read()
                return content
        except OSError as error:
            if pause is None:
                hint = "check the network and run the same command again; $NPM_CONFIG_REGISTRY names another registry"
                message = f"{url} could not be fetched: {error}"
                raise SetupError("environment.fetch_failed", message, hint=hint) from error
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


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
