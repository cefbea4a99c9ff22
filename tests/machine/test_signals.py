"""Signals that end a run: who hears them, how often, and who does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tailrace.machine import signals


@pytest.fixture(params=signals.ENDING)
def ending(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_is_answered_and_not_died_of(ending: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.getsignal(ending)
    with signals.answered(heard.append):
        signal.raise_signal(ending)
    assert heard == [ending]
    assert signal.getsignal(ending) is before


def test_signals_at_once_are_one_wish() -> None:
    now, heard = 0.0, list[int]()
    with signals.answered(heard.append, clock=lambda: now):
        for now in (5.0, 5.0, 5.9, 6.1, 6.5):  # noqa: B007
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert len(heard) == 2


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_what_was_ignored_stays_ignored(ignored: signal.Signals) -> None:
    """As `nohup`, and a shell that starts something in its background, have it."""
    before = signal.signal(ignored, signal.SIG_IGN)
    heard: list[int] = []
    try:
        with signals.answered(heard.append):
            signal.raise_signal(ignored)
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)
    assert heard == [signal.SIGTERM]


DEAF = {
    # Whatever handlers are set later.
    "block": """
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
for number in signals.ENDING:
    signal.raise_signal(number)
""",
    # The programs that it starts, too.
    "ignore": """
for number in signals.ENDING:
    signal.raise_signal(number)
    subprocess.run(["sh", "-c", f"kill -{int(number)} $$"], check=True)
""",
}


@pytest.mark.parametrize("how", DEAF)
def test_the_deaf_hear_nothing(how: str) -> None:
    head = f"import signal, subprocess\nfrom tailrace.machine import signals\nsignals.{how}()"
    code = f"{head}\n{DEAF[how]}\nprint('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr
