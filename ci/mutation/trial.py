"""Tests mutants, each in a separate process, on programs that were drawn before.

The parent process imports the framework, but does not use it, so that the parent can be
forked. No file is changed: a child imports the mutated module from its changed source.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from itertools import chain, count
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import coverage

from ci.work import Work, list_work
from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import Unloadable, format_error, format_exit
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from lockstep.harness.workers.slices import is_watched

BACKENDS = "torch-cpu", "mlx-cpu"
START_SECONDS, PROGRAM_SECONDS = 120.0, 20.0
"""How long importing the backend, and each program, may take."""

MEMORY = 2 << 30
"""Bytes that a child may allocate beyond those that it starts with."""

STATM = Path("/proc/self/statm")
CONTEXT = get_context("fork")

SEEDS = 1000
"""Seeds of one measurement: more than there are kinds."""

PORTION = 16
"""Programs of one kind that are drawn at once: one of them has every check."""

IMPORT = -1
"""Stands for a program among those that run a line."""

Beat = Callable[[], None]
"""Tells the parent that the next program begins."""


@dataclass(frozen=True)
class Ended:
    """The end of a child process: its answer or the error, and its number of beats."""

    answer: Any
    why: str | None
    beats: int


def call(work: Callable[..., Any], *arguments: Any) -> Ended:
    """Runs `work(beat, *arguments)` in a child."""
    ours, theirs = CONTEXT.Pipe(duplex=False)

    def run_child() -> None:
        enter()
        try:
            theirs.send((work(lambda: theirs.send(None), *arguments), None))
        except Exception as error:
            theirs.send((None, f"raised {format_error(error)}"))

    child = CONTEXT.Process(target=run_child)
    child.start()
    theirs.close()
    beats, seconds = 0, START_SECONDS
    try:
        while ours.poll(seconds):
            event = ours.recv()
            if event is not None:
                answer, why = event
                return Ended(answer, why, beats)
            beats, seconds = beats + 1, PROGRAM_SECONDS
        return Ended(None, f"hang: nothing ended within {seconds:g} s", beats)
    except EOFError:
        child.join()
        return Ended(None, f"crash: {format_exit(child.exitcode or 0)}", beats)
    finally:
        child.kill()
        child.join()
        ours.close()


def enter() -> None:
    """Silences a child and limits its memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if STATM.exists():
        most = MEMORY + int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


# --- without a mutation -----------------------------------------------------------------


class Run(NamedTuple):
    """A program on a backend. is_watched: whether every check is made."""

    backend: str
    program: Program
    is_watched: bool

    @property
    def about(self) -> tuple[str, str, str]:
        """Its backend, contract and kind."""
        return self.backend, self.program.contract, self.program.kind

    def find_divergence(self, backend: Backend) -> str | None:
        """Returns the signature of the divergence, if there is one."""
        divergence = run(self.program, backend, self.is_watched).divergence
        return divergence and divergence.get_signature(self.program)


@dataclass(frozen=True)
class Baseline:
    """Programs that the correct backends pass, and the lines that they run.

    Attributes:
        runs: Those of all kinds of both backends in turn.
        lines: For each file below the root, the numbers of the runs that run each line;
            IMPORT among them for those that run when it is imported.
    """

    runs: Sequence[Run]
    lines: Mapping[str, Mapping[int, Collection[int]]]

    def list_runs(self, file: str, lines: Sequence[int] | None = None) -> list[Run]:
        """Lists the runs of one of some lines. Where these are None, or are run when they
        are imported: all that run anything in the file."""
        reached = self.lines.get(file, {})
        numbers = {number for line in lines or () for number in reached.get(line, ())}
        if lines is None or IMPORT in numbers:
            numbers = {number for runs in reached.values() for number in runs}
        return [self.runs[number] for number in sorted(numbers - {IMPORT})]


def draw_runs(work: Work, number: int, seed: int) -> list[Run]:
    """Draws programs of one kind of a backend."""
    backend, *what = work
    draw = Drawer(*what, backend.dtypes).draw
    programs = draw_some(number, seed, draw)
    return [
        Run(backend.name, program, is_watched(index))
        for index, program in enumerate(programs)
    ]


def measure_baseline(beat: Beat, root: Path, programs: int, seed: int) -> Baseline:
    """Draws `programs` programs of each kind of both backends.

    Raises:
        RuntimeError: one diverges.
    """
    files = f"{root}/impl/*"
    reached = coverage.Coverage(include=[files], data_file=None, config_file=False)
    reached.start()
    drawn = []
    for number, work in enumerate(list_work(BACKENDS)):
        beat()
        drawn.append(draw_runs(work, programs, SEEDS * seed + number))
    runs = [single for turn in zip(*drawn, strict=True) for single in turn]
    for number, single in enumerate(runs):
        beat()
        reached.switch_context(str(number))
        if signature := single.find_divergence(load(single.backend)):
            raise RuntimeError(f"{single.backend} diverges: {signature}")
    reached.stop()
    data = reached.get_data()
    lines = {
        Path(file).relative_to(root).as_posix(): {
            line: array("i", (int(context or IMPORT) for context in contexts))
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return Baseline(runs, lines)


# --- with one ---------------------------------------------------------------------------


def check_mutant(
    beat: Beat, module: str, source: bytes, runs: Sequence[Run], seconds: float
) -> str | None:
    """Returns the signature of the first divergence within some seconds of CPU time.

    After `runs` come other programs of the same kinds.
    """
    get_code = SourceFileLoader.get_code

    def get_mutated(self: SourceFileLoader, name: str) -> CodeType | None:
        if name == module:
            return compile(source, self.path, "exec", dont_inherit=True)
        return get_code(self, name)

    SourceFileLoader.get_code = get_mutated  # type: ignore[method-assign, assignment]
    assert module not in sys.modules
    try:
        backends = {name: load(name) for name in {single.backend for single in runs}}
    except Unloadable as error:
        return f"not loaded: {error}"
    deadline = time.process_time() + seconds
    for single in chain(runs, draw_more(runs)):
        if time.process_time() > deadline:
            break
        beat()
        if signature := single.find_divergence(backends[single.backend]):
            return signature
    return None


def draw_more(runs: Sequence[Run]) -> Iterator[Run]:
    """Draws further programs for the backends and kinds of `runs`, endlessly."""
    about = {single.about for single in runs}
    works = [
        work
        for work in list_work(sorted({single.backend for single in runs}))
        if (work.backend.name, work.contract, work.kind) in about
    ]
    for turn in count(1):
        for number, work in enumerate(works):
            yield from draw_runs(work, PORTION, -SEEDS * turn - number)
