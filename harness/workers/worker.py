"""A worker: a process of its own in which backends are imported and run.

Started as ``python -m lockstep.harness.workers.worker FD RECORD LIMITS``. It reads tasks
from the connection at file descriptor FD, answers with events, and keeps its write-ahead
record at RECORD. LIMITS is `harness.backends.driver.client.Limits` as JSON. A backend
can end or hang this process; the pool that started it goes on.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.core.errors import Unavailable, UsageError, say_error
from lockstep.harness.execution.executor import Record
from lockstep.harness.workers.messages import HarnessFailed, Refused, Task, encode
from lockstep.harness.workers.registry import load
from lockstep.harness.workers.runner import Emit, Runner
from lockstep.harness.workers.tasks import TASKS, decode_task

YOUNG = 20_000
"""New objects after which Python collects garbage among them. Its own 700 are reached
after a few steps of a program, which leave next to no garbage."""


def spare_garbage() -> None:
    """Collects garbage less often, and not what a framework has imported for good."""
    gc.freeze()
    gc.set_threshold(YOUNG)


class Worker(Runner):
    """Carries out tasks, one after the other."""

    def __init__(self, record: Record, emit: Emit, limits: Limits) -> None:
        super().__init__(record, emit)
        self.limits = limits
        self.backends: dict[str, Backend] = {}

    def do(self, task: Task[Any]) -> None:
        """One task; its last event is an answer, or says why there is none."""
        try:
            self.asked = task.backend
            self.emit(TASKS[type(task)](self, self.get_backend(task.backend), task))
        except (Unavailable, UsageError) as error:
            self.emit(Refused(str(error)))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            why = f"the harness itself failed at {where}: {say_error(error)}"
            self.emit(HarnessFailed(why))
        self.record.clear()

    def get_backend(self, name: str) -> Backend:
        if name not in self.backends:
            self.backends[name] = load(name, self.limits)
            spare_garbage()
        return self.backends[name]


def follow(parent: int) -> None:
    """Ends this process when its parent is gone, even if a backend hangs, and with it
    the processes that the backend has started."""
    while os.getppid() == parent:
        time.sleep(1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    record = Record(Path(sys.argv[2]))
    sys.path.append(os.getcwd())
    Thread(target=follow, args=[os.getppid()], daemon=True).start()
    worker = Worker(
        record,
        lambda event: connection.send_bytes(encode(event)),
        msgspec.json.decode(sys.argv[3], type=Limits),
    )
    try:
        while True:
            worker.do(decode_task(connection.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has gone, and nobody is left to report to
    finally:
        record.close()


if __name__ == "__main__":
    main()
