"""Runs programs on mutants, each mutant in a separate process.

The programs were drawn in advance. The parent process imports the framework but does not
use it, so that it can be forked. No file is changed: a child process imports the mutated
module from the mutated source.
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
START_SECONDS, PROGRAM_SECONDS, TEST_SECONDS = 120.0, 20.0, 300.0
"""The time limits for importing the backend, for each program, and for each test."""

MEMORY = 2 << 30
"""The number of bytes that a child may allocate in addition to its initial memory."""

STATM = Path("/proc/self/statm")
CONTEXT = get_context("fork")

SEEDS = 1000
"""The number of seeds of one measurement; larger than the number of kinds."""

PORTION = 16
"""The number of programs of a kind that are drawn at once; one runs with all checks."""

IMPORT = -1
"""In a list of runs, stands for the import: the line runs when its file is imported."""

Beat = Callable[[], None]
"""Notifies the parent that the next program begins."""


@dataclass(frozen=True)
class Ended:
    """The end of a child process.

    Attributes:
        answer: the result of the work; None after an error.
        why: the error, or None.
        beats: the number of programs that began.
    """

    answer: Any
    why: str | None
    beats: int


def call(
    work: Callable[..., Any], *arguments: Any, most: float = PROGRAM_SECONDS
) -> Ended:
    """Runs `work(beat, *arguments)` in a child process.

    Args:
        work: the function to run.
        arguments: its arguments after `beat`.
        most: the time limit between two calls of `beat`, in seconds.
    """
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
            beats, seconds = beats + 1, most
        return Ended(None, f"hang: nothing ended within {seconds:g} s", beats)
    except EOFError:
        child.join()
        return Ended(None, f"crash: {format_exit(child.exitcode or 0)}", beats)
    finally:
        child.kill()
        child.join()
        ours.close()


def enter() -> None:
    """Redirects the output of a child process to os.devnull, and limits its memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if STATM.exists():
        most = MEMORY + int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


# --- without a mutation -----------------------------------------------------------------


class Run(NamedTuple):
    """A program on a backend.

    Attributes:
        backend: the name of the backend.
        is_watched: whether the costly checks are made, too.
    """

    backend: str
    program: Program
    is_watched: bool

    @property
    def about(self) -> tuple[str, str, str]:
        """The backend, contract and kind."""
        return self.backend, self.program.contract, self.program.kind

    def find_divergence(self, backend: Backend) -> str | None:
        """Returns the signature of the divergence; None if there is none."""
        divergence = run(self.program, backend, self.is_watched).divergence
        return divergence and divergence.get_signature(self.program)


@dataclass(frozen=True)
class Baseline:
    """Programs that the correct backends pass, and the lines that the programs run.

    Attributes:
        runs: The programs of all kinds of both backends, interleaved.
        lines: File, relative to the root → line → the indexes of the runs that run the
            line, and IMPORT if the line runs when the file is imported.
    """

    runs: Sequence[Run]
    lines: Mapping[str, Mapping[int, Collection[int]]]

    def list_runs(self, file: str, lines: Sequence[int] | None = None) -> list[Run]:
        """Lists the programs that execute at least one of the lines.

        If `lines` is None, or if one of the lines is executed by an import of the file,
        lists the programs that execute any line of the file.
        """
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
    """Draws `programs` programs for each kind of torch-cpu and of mlx-cpu, and runs them.

    Raises:
        RuntimeError: a program diverges.
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


# --- with a mutation --------------------------------------------------------------------


def check_mutant(
    beat: Beat, module: str, source: bytes, runs: Sequence[Run], seconds: float
) -> str | None:
    """Searches for a divergence of a mutant, for `seconds` of CPU time.

    First runs the programs of `runs`, then further programs of the same kinds.

    Args:
        beat: called before each program.
        module: the name of the mutated module.
        source: the source of the mutated module.
        runs: the programs that run the mutated line.
        seconds: the limit of CPU time.

    Returns:
        The signature of the first divergence, or the error if the backend cannot be
        loaded; None if no program diverges.
    """
    plant(module, source)
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


def plant(module: str, source: bytes) -> None:
    """Replaces the source of a module that is not imported yet."""
    get_code = SourceFileLoader.get_code

    def get_mutated(self: SourceFileLoader, name: str) -> CodeType | None:
        if name == module:
            return compile(source, self.path, "exec", dont_inherit=True)
        return get_code(self, name)

    SourceFileLoader.get_code = get_mutated  # type: ignore[method-assign, assignment]
    assert module not in sys.modules


def draw_more(runs: Sequence[Run]) -> Iterator[Run]:
    """Yields further programs of the backends and kinds of `runs`, without end."""
    about = {single.about for single in runs}
    works = [
        work
        for work in list_work(sorted({single.backend for single in runs}))
        if (work.backend.name, work.contract, work.kind) in about
    ]
    for turn in count(1):
        for number, work in enumerate(works):
            yield from draw_runs(work, PORTION, -SEEDS * turn - number)
