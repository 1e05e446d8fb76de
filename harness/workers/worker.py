"""A worker: a process of its own in which backends are imported and run.

Started as ``python -m lockstep.harness.workers.worker FD RECORD LIMITS``. It reads tasks
from the connection at file descriptor FD, answers with events, and keeps its write-ahead
record at RECORD. LIMITS, in JSON, are those of drivers; see
`harness.backends.driver.limits`. A backend can end or hang this process; the pool that
started it is then none the worse.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.driver.limits import Limits
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import say_error
from lockstep.harness.execution.executor import Divergence, Result, breaks_usage
from lockstep.harness.execution.metamorphic.reference import REFERENCE, run_any
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.shrink import Clock, Shrinker
from lockstep.harness.execution.side_failures import Others, Shrunk
from lockstep.harness.programs.ledger import Entry
from lockstep.harness.programs.program import Program, why_too_large
from lockstep.harness.programs.supported import is_known, why_unsupported
from lockstep.harness.workers.registry import Unavailable, load
from lockstep.harness.workers.tasks import TASKS

Emit = Callable[[dict[str, Any]], None]


COSTLY = ("alias", "attention")
"""What differs where only the checks show it that are not made at every step."""

YOUNG = 20_000
"""New objects, dicts and lists among them, after which garbage is looked for among them.
Python's own 700 are there after a few steps of a program, which leaves next to none."""


def spare_garbage() -> None:
    """To look for garbage where there may be some, now that a backend is loaded: what its
    framework imported stays for good."""
    gc.freeze()
    gc.set_threshold(YOUNG)


class Worker:
    """Carries out tasks, one after the other."""

    def __init__(self, record: Record, emit: Emit, limits: Limits) -> None:
        self.record, self.emit, self.limits = record, emit, limits
        self.backends: dict[str, Backend] = {}
        self.asked = ""

    def do(self, task: Mapping[str, Any]) -> None:
        """One task; it ends with an event that says "done" or "unavailable"."""
        try:
            self.asked = task["backend"]
            backend = self.get_backend(self.asked)
            answer = TASKS[task["do"]](self, backend, task)
            self.emit({"event": "done", **answer})
        except (Unavailable, UsageError) as error:
            self.emit({"event": "unavailable", "why": str(error)})
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            why = f"the harness itself failed at {where}: {say_error(error)}"
            self.emit({"event": "broken", "why": why})
        self.record.clear()

    def get_backend(self, name: str) -> Backend:
        if name not in self.backends:
            self.backends[name] = load(name, self.limits)
            spare_garbage()
        return self.backends[name]

    def note(self, program: Program) -> None:
        """Something is done with a program: whoever watches sees that it goes on."""
        self.record.begin(program, self.asked)

    def run(
        self, program: Program, backend: Backend, every: bool, wanted: str | None = None
    ) -> Result:
        """Runs a program with the record kept. wanted: see `run_any`."""
        self.note(program)
        step = self.record.step
        return run_any(program, backend, every=every, on_step=step, wanted=wanted)

    def run_both(self, program: Program, backend: Backend) -> Result:
        """With every check at every step and, if that agrees, with the costly ones at
        some steps, as it ran among others: to watch an array can hide a bug in it. If the
        program says how it failed, that is looked for first."""
        said = program.meta.get("signature")
        wanted = said if isinstance(said, str) else None
        result = self.run(program, backend, True, wanted)
        if result.divergence is None and backend is REFERENCE:
            return self.run(program, backend, every=True)
        return result if result.divergence else self.run(program, backend, every=False)

    def shrink(
        self,
        program: Program,
        divergence: Divergence,
        backend: Backend,
        seconds: float,
        avoid: Sequence[Entry] = (),
        clock: Clock = time.monotonic,
    ) -> Shrunk:
        """The shortest program with the same signature, and how it diverges; it breaks a
        rule of usage only if the longer one does. avoid: known divergences, which no
        program that is tried may meet."""
        signature = divergence.get_signature(program)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        others = Others()
        is_misuse = backend is REFERENCE or breaks_usage(program)

        def find(candidate: Program, every: bool) -> Divergence | None:
            found = self.run(candidate, backend, every, signature).divergence
            if found is not None and not is_misuse and breaks_usage(candidate):
                return None
            if found is None or found.get_signature(candidate) == signature:
                return found
            others.add(candidate, found)
            return None

        # The costly checks only where the others do not show it, or may not any more when
        # the program is another one, in which other steps are sampled.
        if backend is REFERENCE:
            every = True
        elif divergence.what in COSTLY:
            every = find(program, every=True) is not None
        else:
            every = find(program, every=False) is None

        latest = divergence

        def fails(candidate: Program) -> bool:
            nonlocal latest
            found = find(candidate, every)
            latest = found or latest
            return found is not None

        def cut(failing: Program) -> Program:
            return replace(failing, ops=failing.ops[: latest.step + 1])

        if not fails(program):
            return Shrunk(program, divergence)

        def is_declared(candidate: Program) -> bool:
            if why_too_large(candidate) or why_unsupported(candidate, backend):
                return False
            return not (avoid and is_known(candidate, avoid))

        best = Shrinker(program, fails, seconds, is_declared, cut, clock).shrink()
        return Shrunk(best, find(best, every) or divergence, others.shortest)


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

    def emit(event: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(event).encode())

    Thread(target=follow, args=[os.getppid()], daemon=True).start()
    worker = Worker(record, emit, Limits(**json.loads(sys.argv[3])))
    try:
        while True:
            worker.do(json.loads(connection.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has gone, and nobody is left to report to
    finally:
        record.close()


if __name__ == "__main__":
    main()
