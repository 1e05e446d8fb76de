"""The first process of a worker: it ends the worker when the pool is gone.

Started as ``python -m lockstep.harness.workers.guard FD RECORD LIMITS PARENT``. It forks:
the child is the worker (`harness.workers.worker`), in which backends run. A backend may
hold the interpreter's lock, or hang during its import, so that no thread of its process
runs. The guard is a separate process, and ends the whole process group, with drivers and
other processes that the backend has started. It exits with the status of the worker.

It imports very little, so that it starts quickly and takes little memory.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from typing import NoReturn

LOOK_SECONDS = 0.5
"""How often it looks whether the pool is still there."""

GRACE_SECONDS = 1.0
"""In which a worker may end by itself, and remove its record, when the pool is gone."""

YOUNG = 20_000
"""New objects after which Python collects garbage among them. Its own 700 are reached
after a few steps of a program, which leave next to no garbage, and hundreds of times
while a framework is imported, whose objects stay."""


def main() -> None:
    # A Ctrl-C is for the pool. That it cannot come here tells a KeyboardInterrupt that a
    # backend raises from one of the user; see `core.interrupts.is_from_user`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The number of the pool's process was handed over, in case that it is gone already.
    parent = int(sys.argv[4])
    signal.signal(signal.SIGCHLD, lambda *_: end_with_worker(parent))
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        run_worker()
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    end_all()


def run_worker() -> NoReturn:
    spare_garbage()
    from lockstep.harness.workers.worker import main

    main()
    sys.exit()


def spare_garbage() -> None:
    """Collects garbage less often, and not what was imported until now."""
    gc.freeze()
    gc.set_threshold(YOUNG)


def end_all() -> NoReturn:
    """Ends the process group, with all that the backend has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def end_with_worker(parent: int) -> None:
    """Ends in the way that the worker has ended; the pool sees to the rest, if it can."""
    ended, status = os.waitpid(-1, os.WNOHANG)
    if not ended:
        return
    if os.getppid() != parent:
        end_all()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
