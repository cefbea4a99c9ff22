"""Die with your parent: no process of ours outlives the one it works for.

An orphan can deliver minutes after its driver was killed, behind what the driver's successor delivered: that
reverses order (Law 3). Three ties, each for a place where the others do not hold:

- `hold`: a thread that ends this process when another one is gone. For processes that run our `main`.
- `bind_to_parent`: the kernel ends this process with the *thread* that forked it. Only for a forker whose
  forking thread lives as long as the process; never for children of a JVM, whose threads come and go.
- `post_sentinel`: a tiny process that waits for the death of some processes and then kills others. For trees
  that cannot be trusted to look after themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Sequence

from tailrace.machine import signals

PR_SET_PDEATHSIG = 1
_FIRST_INHERITABLE = 3


def hold(pid: int) -> None:
    """End this process, at once and without cleanup, as soon as `pid` is gone. Returns immediately."""
    watch = _watch(pid)
    if watch is None:
        os._exit(1)
    threading.Thread(target=_exit_after, args=(watch,), name="lifeline", daemon=True).start()


def bind_to_parent() -> None:
    """Ask the kernel to SIGKILL this process when the thread that forked it ends."""
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died between the fork and the request
        os._exit(1)


def post_sentinel(ward: int, over: Sequence[int], also: Sequence[int] = ()) -> int:
    """Fork a process that SIGKILLs the process group led by `ward`, then each of `also`, when any of `over`
    dies.

    It ends by itself when `ward` does. It stands in a session of its own, so that no signal meant for its
    ward or its terminal ends it, and does so when this returns. Call it before `ward` starts threads. Returns its pid.
    """
    standing, arrival = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _stand_guard(ward, over, also)
        finally:
            os._exit(0)
    os.close(arrival)
    os.read(standing, 1)  # ends when the sentinel lets go of its files
    os.close(standing)
    return pid


def _stand_guard(ward: int, over: Sequence[int], also: Sequence[int]) -> None:
    os.setsid()
    signals.ignore()
    _let_go_of_files()
    home = _watch(ward)
    watches = [_watch(pid) for pid in over]
    targets = [_watch(pid) for pid in also]
    if home is None:
        return
    if None not in watches:
        ready = _wait([home, *(watch for watch in watches if watch is not None)])
        if home in ready and len(ready) == 1:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(ward, signal.SIGKILL)
    for target in (home, *targets):
        if target is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(target, signal.SIGKILL)


def _let_go_of_files() -> None:
    """Hold none of the ward's pipes open: whoever reads them waits for their end."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(_FIRST_INHERITABLE):
        os.dup2(null, standard)
    os.closerange(_FIRST_INHERITABLE, os.sysconf("SC_OPEN_MAX"))


def _watch(pid: int) -> int | None:
    """A pidfd, which names this very process even after its number is used again; None if it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait(watches: Sequence[int]) -> list[int]:
    poll = select.poll()
    for watch in watches:
        poll.register(watch, select.POLLIN)
    return [watch for watch, _ in poll.poll()]


def _exit_after(watch: int) -> None:
    _wait([watch])
    os._exit(1)
