"""A real S3-compatible server: SeaweedFS, one process with everything in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess, free_port

ACCESS_KEY, SECRET_KEY = "tailrace", "a-secret-of-the-tests"
_PARTS = ("master", "volume", "filer")


class SeaweedServer(LocalServer):
    """One user, `ACCESS_KEY`, who may do everything. With `cert` and `key` it speaks TLS."""

    def __init__(self, directory: Path | None = None, *, cert: Path | None = None, key: Path | None = None) -> None:
        super().__init__("seaweed", directory)
        self._tls = {"cert": cert, "key": key} if cert is not None else {}
        self._inner: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        (self.directory / "data").mkdir(exist_ok=True)
        login = {"credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]}
        rights = {"name": "tests", "actions": ["Admin", "List", "Read", "Tagging", "Write"]}
        (self.directory / "s3.json").write_text(json.dumps({"identities": [{**rights, **login}]}))
        names = [*_PARTS, *(f"{part}.grpc" for part in (*_PARTS, "s3"))]
        self._inner = self._inner or {name: free_port() for name in names}

    def _launch(self, port: int) -> ServerProcess:
        ports = {name.replace(".grpc", ".port.grpc"): number for name, number in self._inner.items()}
        options = {
            "dir": self.directory / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.volumeSizeLimitMB": 64,
            "s3": "true",
            "s3.config": self.directory / "s3.json",
            "s3.port": port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "volume.max": 20,
            **{name if ".port" in name else f"{name}.port": number for name, number in ports.items()},
            **{f"s3.{name}.file": file for name, file in self._tls.items()},
        }
        program = [str(Path(sys.executable).with_name("weed")), "-logtostderr", "server"]
        command = [*program, *(f"-{name}={value}" for name, value in options.items())]
        return ServerProcess(
            command, log=self.log, orphaned=signal.SIGKILL, env={**os.environ, "HOME": str(self.directory)}
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        """S3 listens, and there is a place for data."""
        with socket.socket() as probe:
            listens = probe.connect_ex(("127.0.0.1", port)) == 0
        places = (f"{self._inner['master']}/dir/assign", f"{self._inner['filer']}/")
        return listens and all(_answers(f"http://127.0.0.1:{place}") for place in places)

    def _end(self, process: ServerProcess) -> None:
        process.kill()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:
            return "error" not in answer.read(200).decode(errors="replace")
    except HTTPError as error:
        return error.code < 500  # noqa: PLR2004
    except (URLError, OSError):
        return False
