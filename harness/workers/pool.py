"""Worker processes: tasks go out, events come back.

No code of a backend runs in this process. When a worker ends or stands still, that is an
event like others; the worker's write-ahead record says which program was running.
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
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Literal, TypeVar

import msgspec
from msgspec import structs

from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS, Limits
from lockstep.harness.core.errors import UsageError, clean, format_exit
from lockstep.harness.core.interrupts import shielded
from lockstep.harness.execution.record import EMPTY, OVER, prepare_record
from lockstep.harness.programs.program import OPENING, Program, parse_program
from lockstep.harness.workers import messages
from lockstep.harness.workers.channel import Channel, Stray, make_channel

A = TypeVar("A")

START_GRACE = 2.0
"""Seconds more for a worker to come up, and to say of a driver that it is late."""

NUMBERS = count(1)
"""Of the workers of this process, whichever pool they belong to."""

EXIT_SECONDS = 1.0
LAST_WORDS = 800
TICK = 0.25

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
"""Workers share the cores among them; each framework would take all of them."""


@dataclass
class Process:
    """One worker process and its task.

    Attributes:
        popen: the guard of the worker, and the leader of its process group.
        record: the write-ahead record, opened here: a backend may delete it.
        last: the latest task, which may be over.
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
        """Hands over a task.

        Raises:
            OSError: the worker has ended.
            EOFError: the same.
            Stray: it has written something without being asked.
        """
        if self.channel.receive() is not None:
            raise Stray("a message that belongs to no task")
        self.channel.send(messages.encode(task))
        self.task = self.last = task
        self.seen, self.since = b"", time.monotonic()

    def receive(self, step: float, start: float) -> messages.Event | None:
        """Returns the next event, which may be the end of the worker; None if there is
        none yet.

        Args:
            step: time limit of a step, in seconds.
            start: time limit of loading a backend, in seconds.
        """
        assert self.task is not None
        has_ended = self.popen.poll() is not None
        try:
            message = self.channel.receive()
            if message is not None:
                return messages.decode_event(message, self.task)
            if has_ended:  # a process that it left behind may still have the connection
                raise EOFError
        except EOFError:
            return self.describe_death("crash", self.describe_end())
        except Stray as stray:
            return self.describe_death("crash", f"{STRAY}: {stray}")
        except ValueError as error:
            why = f"the process sent a message that is not an event: {clean(str(error))}"
            return self.describe_death("crash", why)
        return self.describe_hang(step, start)

    def describe_hang(self, step: float, start: float) -> messages.Died | None:
        """The event of a worker whose record has stood still for too long."""
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
            why = f"{problem} within {start:g} s; --start-time gives it more"
            return structs.replace(died, why=why, running=None)
        return None

    def describe_end(self) -> str:
        """Words for the end of the process, or of the connection to it."""
        try:
            return format_exit(self.popen.wait(EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            return "the process closed its connection to the harness"

    def describe_death(self, what: Literal["crash", "hang"], why: str) -> messages.Died:
        """Ends the process, so that its record says no more than this."""
        self.kill()
        running, step = get_running(self.read_record())
        end: dict[str, Any] = {"running": running, "step": step}
        return messages.Died(why, what=what, **end, last_words=self.get_last_words())

    def read_record(self) -> bytes:
        self.content.seek(0)
        return self.content.read()

    def get_last_words(self) -> str:
        """The end of what the worker has printed."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - LAST_WORDS))
        return clean(self.output.read().decode(errors="replace"))

    def kill(self) -> None:
        """Ends the worker and the processes that a backend has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> None:
        """Ends the process and removes its record."""
        self.kill()
        self.channel.close()
        self.output.close()
        self.content.close()
        with suppress(OSError):
            self.record.unlink(missing_ok=True)


STRAY = "the process wrote stray bytes to the harness's connection"


class Pool:
    """Up to `size` worker processes.

    Args:
        size: the most processes at a time.
        folder: for write-ahead records.
        step_seconds: see STEP_SECONDS.
        start_seconds: see START_SECONDS.
        strict: validate the messages of drivers against their schemas.
        variables: environment variables of the workers, besides those of this process.
        unsupported: also run registered backends with untested package versions.
    """

    def __init__(
        self,
        size: int,
        folder: Path,
        step_seconds: float = STEP_SECONDS,
        start_seconds: float = START_SECONDS,
        strict: bool = False,
        variables: Mapping[str, str] = {},
        unsupported: bool = False,
    ) -> None:
        self.variables = {**os.environ, **THREADS, **variables}
        self.size, self.folder = size, folder
        self.step_seconds, self.start_seconds = step_seconds, start_seconds
        # A message gets less than a step, so that its operation can be named.
        seconds = step_seconds / 2, start_seconds
        self.limits = Limits(*seconds, strict=strict, unsupported=unsupported)
        self.new_folders = [path for path in (folder, folder.parent) if not path.exists()]
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
                yield from self.start(process, tasks)
            yield from self.collect()
            watch()

    def call(self, task: messages.Task[A]) -> A | messages.Stopped:
        """One task; the event that ends it."""
        for current, event in self.run(deque([task])):
            if current is task and isinstance(event, messages.Answer | messages.Stopped):
                return event  # type: ignore[return-value]
        raise AssertionError("a task always ends with an event")

    def start(
        self, process: Process, tasks: deque[messages.Task[A]]
    ) -> Iterator[tuple[messages.Task[A], messages.Event]]:
        """Hands the next task to an idle worker; replaces one that is of no use."""
        if not tasks:
            return
        try:
            process.start(tasks[0])
            tasks.popleft()
        except (OSError, EOFError, Stray) as error:
            self.remove(process)
            if process.last is None:  # the next one would come to no more
                task, why = tasks.popleft(), process.describe_end()
                yield task, messages.Died.before(f"a worker cannot start: {why}")
            elif isinstance(error, Stray):
                yield process.last, messages.Died.before(f"{STRAY}: {error}")

    def remove(self, process: Process) -> None:
        process.stop()
        self.processes.remove(process)

    def get_idle(self, wanted: int) -> list[Process]:
        idle = [process for process in self.processes if process.task is None]
        while len(idle) < wanted and len(self.processes) < self.size:
            with shielded():  # a worker that is started is known, and will be ended
                self.processes.append(self.spawn())
            idle.append(self.processes[-1])
        return idle[:wanted]

    def spawn(self) -> Process:
        """Starts a worker in a fresh interpreter, since a fork hangs once a framework was
        used; and in a session of its own, so that Ctrl-C reaches this process only."""
        name = f"{os.getpid()}-{token_hex(4)}-{next(NUMBERS)}.json"
        try:
            self.make_folder()
            return self.open_process(self.folder / name)
        except OSError as error:
            raise UsageError(
                f"a worker cannot be started: {error.strerror or error}; its write-ahead"
                f" record belongs into {self.folder}, which --failures chooses"
            ) from None

    def open_process(self, record: Path) -> Process:
        """Starts the process of a worker. Raises OSError, and then leaves no process or
        file."""
        with ExitStack() as stack:
            stack.callback(record.unlink, missing_ok=True)
            prepare_record(record)
            content = stack.enter_context(record.open("rb"))
            output = stack.enter_context(tempfile.TemporaryFile())
            ours, theirs = make_channel()
            stack.enter_context(closing(ours))
            with theirs:
                popen = self.start_worker(theirs.fileno(), record, output)
            stack.pop_all()
        return Process(popen, ours, record, content, output)

    def start_worker(
        self, connection: int, record: Path, output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-u", "-P", "-m", "lockstep.harness.workers.guard"]
        limits = msgspec.json.encode(self.limits).decode()
        return subprocess.Popen(
            [*command, str(connection), str(record), limits, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[connection],
            env=self.variables,
            start_new_session=True,
        )

    def collect(self) -> Iterator[tuple[messages.Task[Any], messages.Event]]:
        """The events that are there, or come within a tick."""
        busy = [process for process in self.processes if process.task is not None]
        wait([process.channel.end for process in busy], TICK)
        for process in busy:
            yield from self.hear(process)

    def hear(
        self, process: Process
    ) -> Iterator[tuple[messages.Task[Any], messages.Event]]:
        """The events of one worker that are there."""
        while (task := process.task) is not None:
            event = process.receive(self.step_seconds, self.start_seconds)
            if event is None:
                return
            if isinstance(event, messages.Answer | messages.Stopped):
                process.task = None
            if isinstance(event, messages.Died):
                self.remove(process)
            yield task, event


def is_running(content: bytes) -> bool:
    """Whether a record says that a program is running, and not over."""
    return content.strip() not in (b"", EMPTY) and OVER not in content


def get_running(content: bytes) -> tuple[Program | None, int]:
    """The program and the step that a record names.

    The step is OPENING while the backend opens a cache. There is no program if none was
    running, if the worker ended while it wrote the record, or if a backend wrote into it.
    """
    try:
        program = parse_program(json.loads(content), "record")
        step = int(program.meta["step"])
    except (ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None, 0
    return (program, step) if OPENING <= step < len(program.ops) else (None, 0)
