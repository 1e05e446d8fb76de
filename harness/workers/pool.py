"""Starts worker processes, sends them tasks and receives their events.

No code of a backend runs in this process. If a worker crashes or hangs, this is an event,
too. The write-ahead record of the worker tells which program was running.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Literal, TypeVar

import msgspec
from msgspec import structs

from lockstep.harness.backends.driver.client import LIMITS, Limits
from lockstep.harness.core.errors import UsageError, clean, format_exit
from lockstep.harness.core.interrupts import shielded
from lockstep.harness.core.processes import END_SECONDS
from lockstep.harness.execution.record import EMPTY, OVER, prepare_record
from lockstep.harness.programs.program import OPENING, Program, parse_program
from lockstep.harness.workers import messages
from lockstep.harness.workers.channel import Channel, Stray, make_channel

A = TypeVar("A")

START_GRACE = 2.0
"""Extra seconds for a worker to start, and to report that a driver is late."""

EXIT_SECONDS = 1.0
LAST_WORDS = 800
TICK = 0.25

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
"""Limits each worker to one thread: the workers share the cores, but a framework would by
default use all cores."""


@dataclass
class Process:
    """One worker process and its task.

    Attributes:
        popen: the guard process of the worker, which leads the process group.
        channel: the connection to the worker.
        record: the path of the write-ahead record.
        content: the record, opened in this process, since a backend may delete the file.
        output: the stdout and stderr of the worker.
        task: the current task.
        last: the latest task, which may be over.
        seen: the record at the last look.
        since: the time of the last change of the record.
    """

    popen: subprocess.Popen[bytes]
    channel: Channel
    record: Path
    content: IO[bytes]
    output: IO[bytes]
    task: messages.Task[Any] | None = None
    last: messages.Task[Any] | None = None
    seen: bytes = b""
    since: float = field(default_factory=time.monotonic)

    def start(self, task: messages.Task[Any]) -> None:
        """Sends a task to the worker.

        Raises:
            OSError: the worker has ended.
            EOFError: the worker has ended.
            Stray: the worker has written data that belongs to no task.
        """
        if self.channel.receive() is not None:
            raise Stray("a message that belongs to no task")
        self.channel.send(messages.encode(task))
        self.task = self.last = task
        self.seen, self.since = b"", time.monotonic()

    def receive(self, limits: Limits) -> messages.Event | None:
        """Returns the next event, such as a result or the death of the worker; None if no
        event has arrived."""
        assert self.task is not None
        has_ended = self.popen.poll() is not None
        try:
            message = self.channel.receive()
            if message is not None:
                return messages.decode_event(message, self.task)
            if has_ended:  # a child process of the worker may keep the connection open
                raise EOFError
        except EOFError:
            return self.describe_death("crash", self.describe_end())
        except Stray as stray:
            return self.describe_death("crash", f"{STRAY}: {stray}")
        except ValueError as error:
            reason = (
                f"the process sent a message that is not an event: {clean(str(error))}"
            )
            return self.describe_death("crash", reason)
        return self.describe_hang(limits.step_seconds, limits.start_seconds)

    def describe_hang(self, step: float, start: float) -> messages.Died | None:
        """Returns the event of a worker whose record has not changed for too long."""
        content = self.read_record()
        if content != self.seen:
            self.seen, self.since = content, time.monotonic()
        seconds = time.monotonic() - self.since
        if is_running(content):
            if seconds > step:
                return self.describe_death("hang", f"no step ended within {step:g} s")
        elif seconds > start + START_GRACE:
            died = self.describe_death("hang", "")
            problem = "no program was begun" if died.running else "it was not loaded"
            reason = f"{problem} within {start:g} s; --start-time gives it more"
            return structs.replace(died, why=reason, running=None)
        return None

    def describe_end(self) -> str:
        """Describes how the process, or the connection to it, ended."""
        try:
            return format_exit(self.popen.wait(EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            return "the process closed its connection to the harness"

    def describe_death(self, what: Literal["crash", "hang"], why: str) -> messages.Died:
        """Kills the process, so that its record no longer changes, and returns the event
        with the running program."""
        self.kill()
        running, step = get_running(self.read_record())
        end: dict[str, Any] = {"running": running, "step": step}
        return messages.Died(why, what=what, **end, last_words=self.get_last_words())

    def read_record(self) -> bytes:
        self.content.seek(0)
        return self.content.read()

    def get_last_words(self) -> str:
        """Returns the end of the worker's output."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - LAST_WORDS))
        return clean(self.output.read().decode(errors="replace"))

    def kill(self) -> None:
        """Ends the worker and the processes that a backend has started. The guard does
        this. If the guard was killed or stopped, this ends the process group, but no
        processes outside of it."""
        self.popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_SECONDS + EXIT_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> None:
        """Kills the process and removes its record."""
        self.kill()
        self.channel.close()
        self.output.close()
        self.content.close()
        with suppress(OSError):
            self.record.unlink(missing_ok=True)


STRAY = "the process wrote stray bytes to the harness's connection"


class Pool:
    """A pool of up to `size` worker processes.

    Args:
        size: the maximum number of processes at a time.
        folder: the folder for write-ahead records.
        limits: the time limits, and how drivers and backends are checked.
        variables: additional environment variables of the workers.
    """

    def __init__(
        self,
        size: int,
        folder: Path,
        limits: Limits = LIMITS,
        variables: Mapping[str, str] = {},
    ) -> None:
        self.variables = {**os.environ, **THREADS, **variables}
        self.size, self.folder, self.limits = size, folder, limits
        self.new_folders = [
            path for path in (folder, folder.parent) if not os.path.exists(path)
        ]
        self.processes: list[Process] = []

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self.folder}: cannot be made ({error.strerror}); choose another folder"
                " for failures with --failures"
            ) from None

    def __enter__(self) -> Pool:
        try:
            self.make_folder()
            return self
        except KeyboardInterrupt:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.stop()
        self.processes.clear()
        for folder in self.new_folders:
            with suppress(OSError):  # the folder is not empty, or another process uses it
                folder.rmdir()

    def run(
        self, tasks: deque[messages.Task[A]], watch: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[messages.Task[A], messages.Event]]:
        """Sends tasks to the workers and yields their events until all tasks are over.

        Args:
            tasks: the waiting tasks; the caller may add or remove tasks between events.
            watch: a function that is called after each check of the workers, several
                times a second.
        """
        while tasks or any(process.task for process in self.processes):
            for process in self.get_idle(len(tasks)):
                yield from self.start(process, tasks)
            yield from self.collect()
            watch()

    def call(self, task: messages.Task[A]) -> A | messages.Stopped:
        """Runs one task and returns the event that ends it."""
        for current, event in self.run(deque([task])):
            if current is task and isinstance(event, messages.Answer | messages.Stopped):
                return event  # type: ignore[return-value]
        raise AssertionError("a task always ends with an event")

    def start(
        self, process: Process, tasks: deque[messages.Task[A]]
    ) -> Iterator[tuple[messages.Task[A], messages.Event]]:
        """Sends the next task to an idle worker. Removes a worker that cannot take it."""
        if not tasks:
            return
        try:
            process.start(tasks[0])
            tasks.popleft()
        except (OSError, EOFError, Stray) as error:
            self.remove(process)
            if process.last is None:  # a new worker would fail in the same way
                task, reason = tasks.popleft(), process.describe_end()
                yield task, messages.Died.before(f"a worker cannot start: {reason}")
            elif isinstance(error, Stray):
                yield process.last, messages.Died.before(f"{STRAY}: {error}")

    def remove(self, process: Process) -> None:
        process.stop()
        self.processes.remove(process)

    def get_idle(self, wanted: int) -> list[Process]:
        idle = [process for process in self.processes if process.task is None]
        while len(idle) < wanted and len(self.processes) < self.size:
            with shielded():  # every started worker is in the list and will be stopped
                self.processes.append(self.spawn())
            idle.append(self.processes[-1])
        return idle[:wanted]

    def spawn(self) -> Process:
        """Starts a worker. The worker is a new interpreter, because a fork hangs after a
        framework was used. It is in a new session, so that Ctrl-C does not reach it."""
        try:
            self.make_folder()
            return self.open_process(self.folder / f"{os.getpid()}-{token_hex(8)}.json")
        except OSError as error:
            raise UsageError(
                f"a worker cannot be started: {error.strerror or error}; its"
                f" write-ahead record must be in {self.folder}; choose another folder"
                " with --failures"
            ) from None

    def open_process(self, record: Path) -> Process:
        """Starts the process of a worker. If it raises OSError, no process or file is
        left."""
        with ExitStack() as stack:
            stack.callback(record.unlink, missing_ok=True)
            prepare_record(record)
            content = stack.enter_context(record.open("rb"))
            output = stack.enter_context(tempfile.TemporaryFile())
            ours, theirs = make_channel()
            stack.enter_context(closing(ours))
            guard = [sys.executable, "-u", "-P", "-m", "lockstep.harness.workers.guard"]
            limits = msgspec.json.encode(self.limits).decode()
            with theirs:
                fd = theirs.fileno()
                popen = subprocess.Popen(
                    [*guard, str(fd), str(record), limits, str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[fd],
                    env=self.variables,
                    start_new_session=True,
                )
            stack.pop_all()
        return Process(popen, ours, record, content, output)

    def collect(self) -> Iterator[tuple[messages.Task[Any], messages.Event]]:
        """Yields the events of all workers that have arrived or arrive within TICK."""
        busy = [process for process in self.processes if process.task is not None]
        wait([process.channel.end for process in busy], TICK)
        for process in busy:
            yield from self.hear(process)

    def hear(
        self, process: Process
    ) -> Iterator[tuple[messages.Task[Any], messages.Event]]:
        """Yields the events of one worker that have arrived."""
        while (task := process.task) is not None:
            event = process.receive(self.limits)
            if event is None:
                return
            if isinstance(event, messages.Answer | messages.Stopped):
                process.task = None
            if isinstance(event, messages.Died):
                self.remove(process)
            yield task, event


def is_running(content: bytes) -> bool:
    """Returns whether a record names a program that has not ended."""
    return content.strip() not in (b"", EMPTY) and OVER not in content


def get_running(content: bytes) -> tuple[Program | None, int]:
    """Returns the program and the step that a record names.

    The step is OPENING while the backend opens a cache. The program is None if no program
    was running, the worker ended while it wrote the record, or a backend changed the
    record.
    """
    try:
        program = parse_program(json.loads(content), "record")
        step = int(program.meta["step"])
    except (ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None, 0
    return (program, step) if OPENING <= step < len(program.ops) else (None, 0)
