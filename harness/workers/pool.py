"""Worker processes: tasks go out, events come back.

No code of a backend runs in this process. When a worker ends or stands still, that is an
event like others; the worker's write-ahead record says which program was running.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import msgspec

from lockstep.harness.backends.driver.client import limit_by
from lockstep.harness.core.errors import UsageError, clean, format_exit
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers import messages

A = TypeVar("A")

STEP_SECONDS = 20.0
"""A worker hangs if one step takes longer."""

START_SECONDS = 180.0
"""The same for importing a backend."""

NUMBERS = count(1)
"""Of the workers of this process, whichever pool they belong to."""

READ_SECONDS = 20
EXIT_SECONDS = 1.0
LAST_WORDS = 800
TICK = 0.25

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
"""Workers share the cores among them; each framework would take all of them."""


@dataclass
class Process:
    """One worker process and its task."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    record: Path
    output: IO[bytes]
    task: messages.Task[Any] | None = None
    seen: bytes = b""
    since: float = field(default_factory=time.monotonic)

    def start(self, task: messages.Task[Any]) -> None:
        self.task, self.since = task, time.monotonic()
        self.connection.send_bytes(messages.encode(task))

    def is_stuck(self, seconds: float) -> bool:
        """Whether the record has stood still for too long."""
        content = read(self.record)
        if content != self.seen:
            self.seen, self.since = content, time.monotonic()
        limit = seconds if is_running(content) else max(seconds, START_SECONDS)
        return time.monotonic() - self.since > limit

    def receive(self) -> messages.Event:
        """The next event; the death of a worker that has gone or sends something else."""
        assert self.task is not None
        try:
            return messages.decode_event(
                self.connection.recv_bytes(messages.MAX_BYTES), self.task
            )
        except (EOFError, OSError):  # OSError: the message breaks off, or is too large
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(EXIT_SECONDS)  # so that it is its own end that is told
            self.popen.kill()
            why = format_exit(self.popen.wait())
        except ValueError as error:
            why = f"the process sent a message that is not an event: {clean(str(error))}"
        return self.describe_death("crash", why)

    def describe_death(self, what: Literal["crash", "hang"], why: str) -> messages.Died:
        running, step = get_running(read(self.record))
        words = self.get_last_words()
        return messages.Died(why, what=what, running=running, step=step, last_words=words)

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

    Args:
        size: the most processes at a time.
        folder: where write-ahead records stand.
        step_seconds: see STEP_SECONDS.
        strict: validate the messages of drivers against their schemas.
        variables: environment variables of the workers, besides those of this process.
    """

    def __init__(
        self,
        size: int,
        folder: Path,
        step_seconds: float = STEP_SECONDS,
        strict: bool = False,
        variables: Mapping[str, str] = {},
    ) -> None:
        self.variables = {**os.environ, **THREADS, **variables}
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

    def run(
        self, tasks: deque[messages.Task[A]], watch: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[messages.Task[A], messages.Event]]:
        """Hands out tasks and yields their events, until all tasks are over.

        Args:
            tasks: the caller may add to it or clear it in between.
            watch: is called after each look at the workers, several times a second.
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
            watch()

    def call(self, task: messages.Task[A]) -> A | messages.Stopped:
        """One task; the event that ends it."""
        for _, event in self.run(deque([task])):
            if isinstance(event, messages.Answer | messages.Stopped):
                return event  # type: ignore[return-value]
        raise AssertionError("a task always ends with an event")

    def get_idle(self, wanted: int) -> list[Process]:
        idle = [process for process in self.processes if process.task is None]
        while len(idle) < wanted and len(self.processes) < self.size:
            self.processes.append(self.spawn())
            idle.append(self.processes[-1])
        return idle[:wanted]

    def spawn(self) -> Process:
        """Starts a worker in a fresh interpreter, since a fork hangs once a framework was
        used; and in a session of its own, so that Ctrl-C reaches this process only."""
        ours, theirs = Pipe()
        limit_reads(ours.fileno())
        record = self.folder / f"{os.getpid()}-{next(NUMBERS)}.json"
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `Process.stop`
        command = [sys.executable, "-P", "-m", "lockstep.harness.workers.worker"]
        limits = msgspec.json.encode(self.limits).decode()
        popen = subprocess.Popen(
            [*command, str(theirs.fileno()), str(record), limits],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env=self.variables,
            start_new_session=True,
        )
        theirs.close()
        return Process(popen, ours, record, output)

    def collect(self) -> Iterator[tuple[messages.Task[Any], messages.Event]]:
        """The events that are there, or come within a tick."""
        busy = [process for process in self.processes if process.task is not None]
        ready = wait([process.connection for process in busy], TICK)
        for process in busy:
            task = process.task
            assert task is not None
            if process.connection in ready:
                event = process.receive()
            elif process.is_stuck(self.step_seconds):
                why = f"no step ended within {self.step_seconds:g} s"
                event = process.describe_death("hang", why)
            else:
                continue
            if isinstance(event, messages.Died):
                process.stop()
                self.processes.remove(process)
            elif isinstance(event, messages.Answer | messages.Stopped):
                process.task = None
            yield task, event


def limit_reads(descriptor: int) -> None:
    """Lets a read fail when a message breaks off and nothing comes for READ_SECONDS."""
    with socket.socket(fileno=os.dup(descriptor)) as end:
        timeout = struct.pack("ll", READ_SECONDS, 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)


def read(record: Path) -> bytes:
    try:
        return record.read_bytes()
    except FileNotFoundError:
        return b""


def is_running(content: bytes) -> bool:
    """Whether a record says that a program is running."""
    return content.strip() not in (b"", b"{}")


def get_running(content: bytes) -> tuple[Program | None, int]:
    """The program and the step that a record names.

    There is no program if none was running, if the worker ended while it wrote the
    record, or if a backend wrote into it.
    """
    try:
        program = parse_program(json.loads(content), "record")
        step = int(program.meta["step"])
    except (ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None, 0
    return (program, step) if 0 <= step < max(1, len(program.ops)) else (None, 0)
