"""The installer of `make`: it asks where pip asks, does without uv where it must, and is never silent for long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import install
from tools.install import Steps, effective, uv_environment

LISTED = r"""
:env:.cert='/from/a/variable.crt'
:env:.default-timeout='180'
global.cert='/from/a/file.crt'
global.extra-index-url='\nhttps://one.example/simple\nhttps://two.example/simple'
global.index-url='https://user:secret@everywhere.example/simple'
install.index-url='https://installs.example/simple'
install.trusted-host='one.example two.example'
download.index-url='https://downloads.example/simple'
"""


def test_a_variable_wins_over_a_section_and_that_over_the_global_one() -> None:
    found = effective(LISTED)
    assert (found["cert"], found["index-url"]) == ("/from/a/variable.crt", "https://installs.example/simple")


def test_uv_asks_where_pip_would(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_HTTP_TIMEOUT", "UV_INDEX_STRATEGY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_INSECURE_HOST", "said.to.uv.example")
    assert uv_environment(effective(LISTED)) == {
        "UV_DEFAULT_INDEX": "https://installs.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_HTTP_TIMEOUT": "180",
        "SSL_CERT_FILE": "/from/a/variable.crt",
    }
    assert uv_environment({}) == {}


def test_it_tells_what_matters_and_all_of_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    script = "print('Downloading much'); print(' + package==1'); raise SystemExit({})"
    steps = Steps()
    assert steps.run("trying", [sys.executable, "-c", script.format(0)], {})
    output, errors = capfd.readouterr()
    assert [line.partition(" s  ")[2] for line in output.splitlines()] == ["trying", "Downloading much"]
    assert errors == ""
    assert not steps.run("trying", [sys.executable, "-c", script.format(1)], {})
    assert " + package==1" in capfd.readouterr().err


def test_a_command_that_says_nothing_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    tell = Steps.tell

    def hear(steps: Steps, text: str) -> None:
        tell(steps, text)
        if text == "waiting …":
            heard.touch()

    monkeypatch.setattr(Steps, "tell", hear)
    until_heard = f"import pathlib\nwhile not pathlib.Path({str(heard)!r}).exists(): pass"
    assert Steps(silence_s=0.01).run("waiting", [sys.executable, "-c", until_heard], {})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-ins for the installers and the compiler note how they were called."""
    noted = tmp_path / "calls"
    note = f"import sys; open({str(noted)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    for name in ("PIP", "UV", "COMPILE"):
        monkeypatch.setattr(install, name, [sys.executable, "-c", note, name.lower()])
    return noted


def test_the_decoder_is_compiled_while_spark_comes(calls: Path) -> None:
    assert install.install(["demo"], Steps())
    first, *rest = [line for line in calls.read_text().splitlines() if "config" not in line]
    without, *both = rest
    assert first == "pip install -q -c constraints.txt uv"
    assert without.startswith("uv install") and "-e .[demo] --excludes" in without
    assert {line.split()[0] for line in both} == {"uv", "compile"} and not any("--excludes" in line for line in both)


@pytest.mark.parametrize("missing", ["uv", "its installer"])
def test_pip_does_it_where_uv_cannot(missing: str, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "raise SystemExit(1)"]
    if missing == "uv":
        monkeypatch.setattr(install, "UV", broken)
    else:
        note = install.PIP[2].replace("import sys;", "import sys; sys.argv[-1] == 'uv' and sys.exit(1);")
        monkeypatch.setattr(install, "PIP", [sys.executable, "-c", note, "pip"])
    assert install.install(["demo", "test"], Steps())
    assert calls.read_text().splitlines()[-2:] == ["pip install -c constraints.txt -e .[demo,test]", "compile"]


def test_nothing_is_claimed_that_failed(monkeypatch: pytest.MonkeyPatch, calls: Path) -> None:
    monkeypatch.setattr(install, "COMPILE", [sys.executable, "-c", "raise SystemExit(1)"])
    assert not install.install([], Steps())
