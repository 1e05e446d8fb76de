"""Ends all processes that a process has started, also in other sessions.

A process that calls setsid leaves its process group, and outlives a signal to the group.
Linux lists the descendants of a process; an ancestor that adopts orphans keeps them. On
macOS, which has neither, these functions do nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

END_SECONDS = 2.0
"""The time in which killed processes end; the kernel may need it to free a device."""


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose parent has ended."""
    if sys.platform == "linux":
        from ctypes import CDLL, c_ulong

        CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, *map(c_ulong, (1, 0, 0, 0)))


def list_descendants(spared: Collection[int] = ()) -> list[int]:
    """Lists the processes below this process, without those at or below `spared`."""
    children = defaultdict[int, list[int]](list)
    for path in Path("/proc").glob("[0-9]*/stat"):  # nothing on macOS
        with suppress(OSError, IndexError):  # it has ended
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
            children[parent].append(int(path.parent.name))
    below = [os.getpid()]
    for process in below:
        below += [child for child in children[process] if child not in spared]
    return below[1:]


def end_descendants(spared: Collection[int] = ()) -> None:
    """Kills the processes below this process. Repeats this until no process is left or
    END_SECONDS have passed, because a process may start another process while it is
    being killed."""
    deadline = time.monotonic() + END_SECONDS
    while (left := list_descendants(spared)) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)
