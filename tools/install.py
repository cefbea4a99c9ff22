"""Install Tailrace, for work on it, into the environment whose Python runs this; `make` calls it.

python -m tools.install [EXTRA …]

uv does it, several times quicker than pip; pip does where uv cannot be had or fails. Both get packages from where pip
is configured to on this machine. Short lines say what happens, and how long it has taken so far.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
UV = [str(Path(sys.executable).with_name("uv")), "pip"]
PINNED = ["-c", "constraints.txt"]
COMPILE = [sys.executable, "-m", "tailrace.capture.postgres.warm"]
SPARK = "pyspark"
"""The largest package by far. Nothing else is kept waiting by it: the decoder, which needs no Spark, is compiled while
it comes."""

TOLD = ("Building", "Downloading", "Installed", "Installing", "Prepared", "tailrace:")
"""How the lines begin that are worth showing; the rest is shown after a failure."""
WIDTH = 90
SILENCE_S = 5.0


class Steps:
    """Runs commands, and tells in short lines what they do, every `silence_s` at least."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._began = self._told = time.monotonic()
        self._silence_s = silence_s

    def tell(self, text: str) -> None:
        self._told = time.monotonic()
        print(f"tailrace: {self._told - self._began:3.0f} s  {text[:WIDTH]}", flush=True)

    def run(self, what: str, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether it succeeded; what it printed is shown if not."""
        self.tell(what)
        output: list[str] = []
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        reader = threading.Thread(target=self._relay, args=(process, output), daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(max(0.1, self._told + self._silence_s - time.monotonic()))
            if reader.is_alive() and time.monotonic() >= self._told + self._silence_s:
                self.tell(f"{what} …")
        if process.wait() != 0:
            print("".join(output), file=sys.stderr, flush=True)
        return process.returncode == 0

    def _relay(self, process: subprocess.Popen[str], output: list[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if line.strip().startswith(TOLD):
                self.tell(line.strip().removeprefix("tailrace: "))


def install(extras: Sequence[str], steps: Steps) -> bool:
    """Whether all is there: the package with these extras, at the versions of constraints.txt, and a compiled
    decoder."""
    package = ["-e", f".[{','.join(extras)}]" if extras else "."]
    if steps.run("getting the installer", [*PIP, "install", "-q", *PINNED, "uv"], {}) and _with_uv(package, steps):
        return True
    steps.tell("uv cannot do it here: pip does, which takes some minutes")
    done = steps.run("installing with pip", [*PIP, "install", *PINNED, *package], {})
    return done and steps.run("compiling the decoder", COMPILE, {})


def _with_uv(package: Sequence[str], steps: Steps) -> bool:
    env = uv_environment(pip_settings())
    command = [*UV, "install", "--python", sys.executable, *PINNED, *package]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as excluded:
        excluded.write(SPARK)
        excluded.flush()
        if not steps.run("installing all but Spark", [*command, "--excludes", excluded.name], env):
            return False
    compiled: list[bool] = []
    compiler = threading.Thread(target=lambda: compiled.append(steps.run("compiling the decoder", COMPILE, {})))
    compiler.start()
    installed = steps.run("installing Spark", command, env)
    compiler.join()
    return installed and all(compiled)


def pip_settings() -> dict[str, str]:
    """What pip's files and variables say about `pip install`, by the options' names."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout
    return effective(listed)


def effective(listed: str) -> dict[str, str]:
    """The settings in what `pip config list` prints. A variable wins over a command's section, that over the global
    one."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, separator, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if separator and section in found:
            found[section][option] = ast.literal_eval(value)
    return found["global"] | found["install"] | found[":env:"]


def uv_environment(pip: Mapping[str, str]) -> dict[str, str]:
    """The same for uv, which does not read pip's. What is said to uv itself stays."""
    several = {name: pip.get(name, "").split() for name in ("extra-index-url", "find-links", "trusted-host")}
    wanted = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(several["extra-index-url"]),
        "UV_INDEX_STRATEGY": "unsafe-best-match" if several["extra-index-url"] else "",  # as pip looks into several
        "UV_FIND_LINKS": ",".join(several["find-links"]),
        "UV_INSECURE_HOST": " ".join(several["trusted-host"]),
        "UV_HTTP_TIMEOUT": pip.get("timeout") or pip.get("default-timeout", ""),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "SSL_CLIENT_CERT": pip.get("client-cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
    }
    return {name: text for name, text in wanted.items() if text and name not in os.environ}


if __name__ == "__main__":
    steps = Steps()
    if not install(sys.argv[1:], steps):
        sys.exit(1)
    steps.tell("installed")
