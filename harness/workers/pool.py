"""Workers, and what becomes of them: tasks go out, events come back.

Nothing of a backend runs in this process. A worker that ends or stands still is an event
like others; its write-ahead record says which program it was at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from lockstep.harness.backends.driver.limits import limit_by
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import clean, say_exit

Task = Mapping[str, Any]
Event = dict[str, Any]

ENDINGS = frozenset({"done", "unavailable", "broken", "crash", "hang"})
"""The events after which a task is over."""

STEP_SECONDS = 20.0
"""How long one step may take before the worker counts as hanging."""

START_SECONDS = 180.0
"""The same for importing a backend."""

NUMBERS = count(1)
"""Of the workers of this process, whichever pool they belong to."""

LAST_WORDS = 800
TICK = 0.25

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
"""Workers share the cores among them; each framework would take all of them."""


@dataclass
class Process:
    """One worker process and what it is doing."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    record: Path
    output: IO[bytes]
    task: Task | None = None
    seen: bytes = b""
    since: float = field(default_factory=time.monotonic)

    def start(self, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        self.connection.send_bytes(json.dumps(task).encode())

    def is_stuck(self, seconds: float) -> bool:
        """Whether the record has stood still for too long."""
        content = read(self.record)
        if content != self.seen:
            self.seen, self.since = content, time.monotonic()
        limit = seconds if is_running(content) else max(seconds, START_SECONDS)
        return time.monotonic() - self.since > limit

    def describe_end(self) -> Event:
        """Why the process is gone, and what it was at."""
        code = self.popen.wait()
        return {"event": "crash", "why": say_exit(code), **self.describe_work()}

    def describe_work(self) -> Event:
        return {
            "running": get_running(read(self.record)),
            "last_words": self.get_last_words(),
        }

    def get_last_words(self) -> str:
        """The end of what the worker has printed."""
        self.output.flush()
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - LAST_WORDS))
        return clean(self.output.read().decode(errors="replace"))

    def stop(self) -> None:
        """Ends the process and removes its record."""
        self.connection.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)  # children of a backend too
        self.popen.wait()
        self.output.close()
        with suppress(OSError):
            self.record.unlink(missing_ok=True)


class Pool:
    """Up to `size` worker processes.

    folder: where write-ahead records stand. step_seconds: see STEP_SECONDS. strict: the
    messages of drivers are held against their schemas.
    """

    def __init__(
        self,
        size: int,
        folder: Path,
        step_seconds: float = STEP_SECONDS,
        strict: bool = False,
    ) -> None:
        self.size, self.folder, self.step_seconds = size, folder, step_seconds
        self.limits = limit_by(step_seconds, strict)
        self.made = [made for made in (folder, folder.parent) if not made.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{folder}: cannot be made ({error.strerror}); choose another folder for"
                " failures with --failures"
            ) from None
        self.processes: list[Process] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.stop()
        self.processes.clear()
        for folder in self.made:
            with suppress(OSError):  # it holds something, or another process uses it
                folder.rmdir()

    def run(self, tasks: deque[Task]) -> Iterator[tuple[Task, Event]]:
        """Hands out tasks and yields events as they come, until all tasks are over.

        `tasks` may be added to or cleared in between. A lone {"event": "tick"} with an
        empty task comes now and then, for those who watch a clock.
        """
        while tasks or any(process.task for process in self.processes):
            for process in self.get_idle(len(tasks)):
                try:
                    process.start(tasks[0])
                    tasks.popleft()
                except OSError:  # it was ended while it had nothing to do
                    process.stop()
                    self.processes.remove(process)
            yield from self.collect()
            yield {}, {"event": "tick"}

    def call(self, task: Task) -> Event:
        """One task; the event that ends it."""
        for _, event in self.run(deque([task])):
            if event["event"] in ENDINGS:
                return event
        raise AssertionError("a task always ends with an event")

    def get_idle(self, wanted: int) -> list[Process]:
        idle = [process for process in self.processes if process.task is None]
        while len(idle) < wanted and len(self.processes) < self.size:
            self.processes.append(self.spawn())
            idle.append(self.processes[-1])
        return idle[:wanted]

    def spawn(self) -> Process:
        """Starts a worker; a fresh interpreter, since forking after a framework was used
        hangs. It gets a session of its own, so that Ctrl-C reaches this process only."""
        ours, theirs = Pipe()
        record = self.folder / f"{os.getpid()}-{next(NUMBERS)}.json"
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `Process.stop`
        command = [
            sys.executable,
            "-P",
            "-m",
            "lockstep.harness.workers.worker",
            str(theirs.fileno()),
            str(record),
            json.dumps(asdict(self.limits)),
        ]
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **THREADS},
            start_new_session=True,
        )
        theirs.close()
        return Process(popen, ours, record, output)

    def collect(self) -> Iterator[tuple[Task, Event]]:
        """The events that are there, or come within a tick."""
        busy = [process for process in self.processes if process.task is not None]
        ready = wait([process.connection for process in busy], TICK)
        for process in busy:
            task = process.task
            assert task is not None
            event = self.receive(process) if process.connection in ready else None
            if event is None and process.is_stuck(self.step_seconds):
                event = {
                    "event": "hang",
                    "why": f"no step ended within {self.step_seconds:g} s",
                    **process.describe_work(),
                }
            if event is None:
                continue
            if event["event"] in ("crash", "hang"):
                process.stop()
                self.processes.remove(process)
            elif event["event"] in ENDINGS:
                process.task = None
            yield task, event

    def receive(self, process: Process) -> Event:
        try:
            event: Event = json.loads(process.connection.recv_bytes())
            return event
        except (EOFError, OSError, ValueError):  # it has gone, or babbles
            process.popen.kill()
            return process.describe_end()


def read(record: Path) -> bytes:
    try:
        return record.read_bytes()
    except FileNotFoundError:
        return b""


def is_running(content: bytes) -> bool:
    """Whether a record says that a program is running."""
    return content.strip() not in (b"", b"{}")


def get_running(content: bytes) -> Any:
    """The program that a record says is running; None if there is none, or if the worker
    was ended in the very moment of writing it."""
    try:
        return json.loads(content) or None
    except ValueError:
        return None
