"""The command, in a process of its own or in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lockstep.harness.backends.backend import Backend
from lockstep.harness.cli.main import main
from lockstep.harness.execution.record import Record
from lockstep.harness.workers.messages import (
    Event,
    RandomTask,
    SliceDone,
    Task,
    decode_event,
    encode,
)
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.runner import Runner
from lockstep.harness.workers.slices import RandomSlice
from lockstep.harness.workers.worker import Worker, decode_task

ROOT = Path(__file__).parents[2]
HERE = "tests.harness.misbehaving"
CORRECT = f"{HERE}:correct"


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that was printed."""
        return self.out + self.err

    @property
    def words(self) -> str:
        """The same without the breaks of the terminal."""
        return " ".join(self.text.split())


Run = Callable[..., Ended]

# What runs in the background of a shell without job control, as on a CI machine, is
# started with Ctrl-C ignored, and so are its children; under `nohup`, SIGHUP is ignored.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from lockstep.harness.__main__ import main
main()
"""


def begin(*arguments: object, **more: str) -> subprocess.Popen[str]:
    """`lockstep` in the background. more: of its environment."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def lockstep(*arguments: object, **more: str) -> Ended:
    """`lockstep` in a process of its own."""
    with begin(*arguments, **more) as process:
        try:
            out, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ended(process.returncode, out, err)


def invoke(*arguments: object) -> Ended:
    """`lockstep` in this process."""
    runner = CliRunner(env={"COLUMNS": "80"})
    ended = runner.invoke(main, list(map(str, arguments)), prog_name="lockstep")
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


@contextmanager
def handling_ctrl_c() -> Iterator[None]:
    """SIGINT as in a terminal; it may be ignored here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_behind(call: Callable[..., Any], done: list[Any]) -> Callable[..., Any]:
    """The same call, with a Ctrl-C before it returns."""

    def interrupted(*arguments: Any, **more: Any) -> Any:
        done.append(call(*arguments, **more))
        signal.raise_signal(signal.SIGINT)
        return done[-1]

    return interrupted


def find_processes(mark: str) -> set[int]:
    """The processes with this text in their environment, but for zombies."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def run_here(
    pool: Pool, tasks: deque[Task[Any]], watch: Callable[[], None] = lambda: None
) -> Iterator[tuple[Task[Any], Event]]:
    """`Pool.run`, with a worker in this process; messages go the way that they go."""
    events: list[Event] = []
    with closing(Record(pool.folder / "here.json")) as record:
        worker = Worker(record, events.append, pool.limits)
        while tasks:
            task = tasks.popleft()
            worker.do(decode_task(encode(task)))
            yield from ((task, decode_event(encode(event), task)) for event in events)
            events.clear()
            watch()


def run_slice(
    folder: Path, backend: Backend, programs: int, *pair: str, **more: Any
) -> tuple[SliceDone, list[Any]]:
    """Runs programs of a contract and a kind, if none is given of kv; its answer, and
    its events. more: fields of the task."""
    events: list[Any] = []
    names = "b", *(pair or ("layer", "kv")), 0
    task = RandomTask(*names, **{"seed": 1, "programs": programs, **more})
    with closing(Record(folder / "record")) as record:
        done = RandomSlice(Runner(record, events.append), backend, task).check()
    return done, events
