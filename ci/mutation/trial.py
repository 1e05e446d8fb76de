"""Trials of mutants: each in a process of its own, on programs that were drawn before.

The parent imports the framework and runs nothing in it, so that it can be forked. Files
stay as they are: a child imports one module from other source.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Any

import coverage

from lockstep.harness.core.errors import Unloadable, format_error, format_exit
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load

BACKEND = "torch-cpu"
START_SECONDS, PROGRAM_SECONDS = 120.0, 20.0
"""How long importing the backend, and each program, may take."""

MEMORY = 2 << 30
"""Bytes that a child may allocate beyond those that it starts with."""

STATM = Path("/proc/self/statm")
CONTEXT = get_context("fork")

IMPORT = -1
"""Stands for a program among those that run a line."""

Beat = Callable[[], None]
"""Tells the parent that the next program begins."""


@dataclass(frozen=True)
class Ended:
    """The end of a child: with an answer, or why without one, after how many beats."""

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


@dataclass(frozen=True)
class Baseline:
    """Programs that the correct backend passes, and the lines that they run.

    Attributes:
        programs: Those of all kinds in turn.
        lines: For each file below the root, the numbers of the programs that run each
            line; IMPORT among them for those that run when it is imported.
    """

    programs: Sequence[Program]
    lines: Mapping[str, Mapping[int, Collection[int]]]

    def list_programs(
        self, file: str, lines: Sequence[int] | None = None
    ) -> list[Program]:
        """Lists the programs that run one of some lines. Where these are None, or are run
        when they are imported: all that run anything in the file."""
        reached = self.lines.get(file, {})
        numbers = {one for line in lines or () for one in reached.get(line, ())}
        if lines is None or IMPORT in numbers:
            numbers = {one for some in reached.values() for one in some}
        return [self.programs[number] for number in sorted(numbers - {IMPORT})]


def measure_baseline(beat: Beat, root: Path, count: int, seed: int) -> Baseline:
    """Draws `count` programs of each kind; raises RuntimeError if one diverges."""
    files = f"{root}/impl/*"
    reached = coverage.Coverage(include=[files], data_file=None, config_file=False)
    reached.start()
    backend = load(BACKEND)
    drawn: list[list[Program]] = []
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            beat()
            drawn.append([])
            drawer = Drawer(contract, kind, declared, backend.dtypes)
            GENERATORS["plain"](count, seed, drawer.draw, drawn[-1].append)
    programs = [program for turn in zip(*drawn, strict=True) for program in turn]
    for number, program in enumerate(programs):
        beat()
        reached.switch_context(str(number))
        divergence = run(program, backend).divergence
        if divergence is not None:
            raise RuntimeError(f"{BACKEND} diverges: {divergence.message}")
    reached.stop()
    data = reached.get_data()
    lines = {
        Path(file).relative_to(root).as_posix(): {
            line: [int(context or IMPORT) for context in contexts]
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return Baseline(programs, lines)


# --- with one ---------------------------------------------------------------------------


def check_mutant(
    beat: Beat, module: str, source: bytes, programs: Sequence[Program], seconds: float
) -> str | None:
    """Returns the signature of the first divergence."""
    get_code = SourceFileLoader.get_code

    def get_mutated(self: SourceFileLoader, name: str) -> CodeType | None:
        if name == module:
            return compile(source, self.path, "exec", dont_inherit=True)
        return get_code(self, name)

    SourceFileLoader.get_code = get_mutated  # type: ignore[method-assign, assignment]
    assert module not in sys.modules
    try:
        backend = load(BACKEND)
    except Unloadable as error:
        return f"not loaded: {error}"
    deadline = time.monotonic() + seconds
    for program in programs:
        if time.monotonic() > deadline:
            break
        beat()
        divergence = run(program, backend).divergence
        if divergence is not None:
            return divergence.get_signature(program)
    return None
