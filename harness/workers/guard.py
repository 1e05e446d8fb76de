"""Runs the guard process of a worker, which ends the worker when the pool has ended.

The command is ``python -m lockstep.harness.workers.guard FD RECORD LIMITS PARENT``. The
guard forks; the child process is the worker (`harness.workers.worker`), which runs the
backends. A backend may hold the interpreter lock, or hang during its import, so a thread
of the worker could not end it. The guard ends all processes that the backend has started,
such as drivers: on Linux its descendants, elsewhere its process group. It exits with the
status of the worker; SIGTERM from the pool ends it, too.

The guard imports few modules, so that it starts quickly and needs little memory.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from typing import NoReturn

from lockstep.harness.core.processes import adopt_orphans, end_descendants

LOOK_SECONDS = 0.5
"""The interval of the checks that the pool is still running."""

GRACE_SECONDS = 1.0
"""The time that a worker has to end and remove its record after the pool has ended."""

YOUNG = 20_000
"""The number of new objects after which Python collects garbage. Python's default of 700
is reached after a few steps of a program, which leave almost no garbage, and hundreds of
times during the import of a framework, whose objects stay."""


def main() -> None:
    # Only the pool handles Ctrl-C. Because SIGINT is ignored here, a KeyboardInterrupt in
    # a worker was raised by a backend; see `core.interrupts.is_from_user`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The process id of the pool is an argument, since the pool may have ended already.
    parent, worker = int(sys.argv[4]), 0
    adopt_orphans()
    signal.signal(signal.SIGCHLD, lambda *_: end_with_worker(worker, parent))
    signal.signal(signal.SIGTERM, lambda number, _: end_by(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until `worker` is known
    worker = os.fork()
    if worker == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    if worker == 0:
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
    """Makes garbage collection rarer, and excludes the objects imported so far."""
    gc.freeze()
    gc.set_threshold(YOUNG)


def end_others() -> None:
    """Kills all processes that the worker and the backend have started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_descendants()


def end_all() -> NoReturn:
    """Kills all descendants of this process, and its process group."""
    end_others()
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def end_by(number: int) -> NoReturn:
    """Kills all descendants of this process, and ends the guard by a signal."""
    end_others()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)


def end_with_worker(worker: int, parent: int) -> None:
    """Ends the guard with the exit status or signal of the worker, after all other
    processes. Other child processes are adopted orphans."""
    ended, status = -1, 0
    while ended != worker:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # this handler has interrupted itself
            return
        if not ended:
            return
    if os.getppid() != parent:
        end_all()
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        end_by(os.WTERMSIG(status))
    end_others()
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
