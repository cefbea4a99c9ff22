"""A full disk is told from everything else, whoever tells it."""

from __future__ import annotations

import errno
import traceback

import pytest

from tailrace.errors import Action, decide
from tailrace.machine.space import FULL, full_disk


def failure(text: str = "", number: int = errno.ENOSPC) -> OSError:
    """As the system raises it."""
    return OSError(number, text or "No space left on device", "/data/x")


def test_a_device_that_is_full() -> None:
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb", buffering=0) as device:
        device.write(b"x")
    full = full_disk(caught.value, "feed/files")
    assert full is not None
    assert (full.code, full.where, decide(full)) == ("disk.full", "feed/files", Action.RETRY)
    assert "No space left on device" in full.message
    assert "free space" in full.hint


@pytest.mark.parametrize("number", FULL)
def test_every_way_in_which_the_system_says_so(number: int) -> None:
    assert full_disk(failure(number=number)) is not None


def test_a_cause_counts() -> None:
    try:
        try:
            raise failure()
        except OSError as error:
            raise RuntimeError("the batch failed") from error
    except RuntimeError as error:
        assert full_disk(error) is not None


TOLD = [
    "Job aborted.\nCaused by: java.io.IOException: No space left on device\n\tat java.base/java.io…",
    "An error occurred while calling o1.x.\n: java.io.FileNotFoundException: /tmp/x (Disk quota exceeded)",
    "java.nio.file.FileSystemException: /data/offsets/.3.tmp: No space left on device",
    "[STREAM_FAILED] Query ended: org.apache.hadoop.fs.FSError: java.io.IOException: File too large",
    "".join(traceback.format_exception(failure())),
]


@pytest.mark.parametrize("text", TOLD)
def test_a_trace_of_another_process_counts(text: str) -> None:
    assert full_disk(RuntimeError(text)) is not None


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("the text 'No space left on device' is no number"),
        RuntimeError("java.io.IOException: Connection refused\nNo space left on device"),
    ],
)
def test_what_is_wrong_otherwise_is_not_called_full(error: Exception) -> None:
    assert full_disk(error) is None
