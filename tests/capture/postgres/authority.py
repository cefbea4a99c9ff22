"""Certificates of a test's own, by the `openssl` program, and a PostgreSQL that insists on them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tailrace.testing.servers import PostgresServer

_VALID = ("-days", "2", "-sha256")
MAJOR = 15
"""Built with TLS; the wheel's 16 and 18 are not."""


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


class TlsServer(PostgresServer):
    """Takes TLS only, from clients with a certificate of its authority."""

    def __init__(self) -> None:
        super().__init__(MAJOR)
        self.authority = Authority(self.directory / "tls", "authority")
        own = self.authority.sign("server", "IP:127.0.0.1")
        self.client: Certificate = self.authority.sign("client")
        files = {"ssl_cert_file": own.cert, "ssl_key_file": own.key, "ssl_ca_file": self.authority.root}
        self.settings |= {"ssl": "on"} | {name: str(path) for name, path in files.items()}

    def dsn(self, database: str = "postgres", **params: str) -> str:
        files = {"sslrootcert": self.authority.root, "sslcert": self.client.cert, "sslkey": self.client.key}
        return super().dsn(database, **{name: str(path) for name, path in files.items()}, **params)

    def insist(self) -> None:
        rule = "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            (self.data / "pg_hba.conf").write_text(rule)
            connection.execute("SELECT pg_reload_conf()")

    def options(self, database: str) -> dict[str, Any]:
        """The source's options; the DSN has neither password nor TLS in it."""
        tls = {"mode": "verify-full", "root_cert": self.authority.root}
        return {
            "dsn": f"postgresql://postgres@127.0.0.1:{self.port}/{database}",
            "password": self.password,
            "tls": tls | {"cert": self.client.cert, "key": self.client.key},
        }


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
