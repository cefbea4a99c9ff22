"""Certificates of a test's own, by the `openssl` program, which must be there."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_VALID = ("-days", "2", "-sha256")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is in `root`."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.name = folder, name
        self.root, self._key = folder / f"{name}.crt", folder / f"{name}.key"
        own = ("-subj", f"/CN={name}", "-out", str(self.root), "-addext", "basicConstraints=critical,CA:TRUE")
        _openssl("req", "-x509", *_new_key(self._key), *own, *_VALID)

    def sign(self, name: str, alternative: str | None = None) -> Certificate:
        """For `name`; `alternative` is a subjectAltName such as `IP:127.0.0.1`."""
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "")
        _openssl("req", *_new_key(made.key), "-subj", f"/CN={name}", "-out", str(request))
        signer = ("-CA", str(self.root), "-CAkey", str(self._key), "-CAcreateserial", "-extfile", str(extensions))
        _openssl("x509", "-req", "-in", str(request), *signer, "-out", str(made.cert), *_VALID)
        made.key.chmod(0o600)
        return made


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
