"""Defines the functions for tests of other projects: programs as a Hypothesis strategy,
and a run.

The package `lockstep` exports these functions, for example `lockstep.programs`.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, flock
from functools import cache
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from hypothesis import example
from hypothesis import strategies as st

from lockstep.harness.backends.backend import Backend, get_environment
from lockstep.harness.backends.recorder import Calls, Form, record_calls
from lockstep.harness.cli.project import load_project
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import get_named
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.interrupts import noting
from lockstep.harness.execution.executor import Result
from lockstep.harness.execution.metamorphic.reference import get_reference
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.shrink import Shrunk, get_rank, make_busy_clock
from lockstep.harness.jobs.crash import RECORD, recover
from lockstep.harness.jobs.failures import UNNAMED, Failure, make_failure, save
from lockstep.harness.programs.files import RUNNING, is_record, iterate_saved
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.hypothesis import LEAST, make_strategy
from lockstep.harness.programs.ledger import Entry, load_ledger, why_unsupported
from lockstep.harness.programs.program import (
    FORMAT,
    Divergence,
    Program,
    parse_program,
    why_too_large,
)
from lockstep.harness.programs.recording import Recording
from lockstep.harness.reports.console import format_whole
from lockstep.harness.workers.recorders import find_recorder, why_not_replayed
from lockstep.harness.workers.registry import list_names, load
from lockstep.harness.workers.runner import Runner

SHRINK_SECONDS = 10.0
MOST_EXAMPLES = 100
"""The maximum number of programs that `examples` takes from a folder."""

Test = TypeVar("Test", bound=Callable[..., Any])


# --- programs ---------------------------------------------------------------------------


def programs(
    contract: str,
    kind: str,
    backend: Backend | str | None = None,
    *,
    max_ops: int | None = None,
    seeded: bool = False,
) -> st.SearchStrategy[Program]:
    """Makes a strategy of programs for one kind of cache.

    Args:
        contract: "layer", "unified", "prefix", "batched" or "paged".
        kind: a kind of the contract, such as "kv".
        backend: a declaration or a name. Programs contain only operations and config
            values that the backend declares, and avoid the known divergences of its
            ledger. None to draw from the whole contract.
        max_ops: the maximum number of operations in a program; None for the usual limit,
            which is 36 to 84, occasionally 240.
        seeded: has no effect any more, because Hypothesis draws every choice.

    Raises:
        UsageError: the contract or kind does not exist, the backend does not declare the
            kind, or `max_ops` is less than 1.
        Unavailable: the backend needs something that this machine lacks.
    """
    if max_ops is not None and max_ops < 1:
        raise UsageError(f"max_ops must be at least 1, not {max_ops}")
    rules = get_named(CONTRACTS, contract, "contract")
    get_named(dict.fromkeys(rules.kinds, True), kind, f"kind of {contract}")
    target = get_reference() if backend is None else get_backend(backend)
    declared = target.contracts.get(contract, {}).get(kind)
    if declared is None:
        raise UsageError(f"{target.name} declares no cache of kind {kind} ({contract})")
    avoid = load_known(target, kind)
    drawer = Drawer(contract, kind, declared, target.dtypes, avoid, longest=max_ops)
    return make_strategy(drawer.draw, LEAST if max_ops != 1 else 1)


@cache
def load_backend(name: str) -> Backend:
    """Imports a backend into this process. Searches the same folders as the commands:
    the folders in the project's settings and the current folder."""
    for folder in (*load_project().python_path, Path()):
        path = str(folder.absolute())
        if path not in sys.path:
            sys.path.append(path)
    return load(name)


def get_backend(backend: Backend | str) -> Backend:
    return load_backend(backend) if isinstance(backend, str) else backend


def parse(document: Mapping[str, Any]) -> Program:
    """Returns the program in a document of the form that files and failure messages have.

    Raises:
        UsageError: the document is not a program.
    """
    return parse_program(document, "the document")


def examples(
    folder: str | Path, kind: str | None = None, backend: Backend | str | None = None
) -> Callable[[Test], Test]:
    """Makes a Hypothesis test run the programs that failed before first.

    Write this decorator above `@given`; the test's argument must be `program`. If the
    folder is missing or empty, there are no programs. Files that are not programs are
    ignored.

    Args:
        folder: a folder with failures, or a file.
        kind: select only programs of this kind; None for all kinds.
        backend: a declaration or a name; select only programs that this backend supports,
            even if they failed on another backend. None for all programs.

    Raises:
        UsageError: the backend does not exist.
        Unavailable: the backend needs something that this machine lacks.
    """
    runner = None if backend is None else get_backend(backend)

    def is_wanted(program: Program) -> bool:
        if kind not in (None, program.kind):
            return False
        return runner is None or not why_unsupported(program, runner)

    def decorate(test: Test) -> Test:
        saved = filter(is_wanted, list_saved(Path(folder)))
        for program in islice(saved, MOST_EXAMPLES):
            test = example(program=program)(test)
        return test

    return decorate


def list_saved(path: Path) -> list[Program]:
    """Lists the programs of a file or a folder; the folder may be empty or missing.

    Write-ahead records in a folder are ignored: their programs may be running in another
    process, or may have ended a process.
    """
    if not path.exists():
        return []
    try:
        return [
            saved
            for file, saved in iterate_saved([path])
            if isinstance(saved, Program) and (file == path or not is_record(file))
        ]
    except UsageError:
        if path.is_dir():
            return []
        raise


# --- a run ------------------------------------------------------------------------------


class Diverged(AssertionError):
    """A backend and the reference differ, or the backend raised an error.

    Each signature has a separate subclass, so that Hypothesis distinguishes the failures.

    Attributes:
        failure: the shortest program that shows the signature so far, and its file.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(format_whole(failure))
        self.failure = failure


@cache
def get_class(signature: str) -> type[Diverged]:
    return type(f"Diverged[{signature}]", (Diverged,), {"__module__": __name__})


SHORTEST_SHOWN: dict[tuple[str, str], Failure] = {}
"""Backend and signature → the shortest program that shows it, in this process."""


def run(
    program: Program, backend: Backend | str, failures: str | Path = "failures"
) -> Result:
    """Runs a program on the reference and on a backend, in this process.

    While Hypothesis shrinks, a test runs hundreds of failing programs. The first program
    with each signature is shortened immediately, as `lockstep shrink` does, and saved;
    later programs are shortened and saved only if they are simpler.

    Args:
        program: see `programs`.
        backend: a declaration or a name, as for `lockstep check --backend`. If it ends
            the process, the next run in this folder saves the program and warns. The
            fixture `lockstep_check` runs backends in another process.
        failures: the folder for failing programs; `lockstep replay` runs them again.

    Returns:
        The steps that ran, and the steps that were skipped.

    Raises:
        Diverged: the backend and the reference differ.
        UsageError: the program needs something that the backend does not declare.
        Unavailable: the backend needs something that this machine lacks.
    """
    loaded = get_backend(backend)
    reason = why_too_large(program) or why_unsupported(program, loaded)
    if reason:
        raise UsageError(f"{loaded.name} cannot run this program: {reason}")
    runner, folder = get_runner(Path(failures)), Path(failures)
    runner.backend_name = backend if isinstance(backend, str) else loaded.name
    try:
        with noting():
            result = runner.run_both(program, loaded, load_known(loaded, program.kind))
            if result.divergence is not None:
                failure = keep(program, result.divergence, loaded, backend, folder)
                raise get_class(failure.signature)(failure)
    finally:
        runner.record.clear()
    return result


def load_known(backend: Backend, kind: str) -> Sequence[Entry]:
    """Returns the ledger of a kind."""
    return load_entries(backend.ledger, backend.name, kind)


load_entries = cache(load_ledger)


@cache
def make_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lockstep-")


def get_runner(folder: Path) -> Runner:
    """Returns the runner of this process for a folder for failures. Warns of programs
    that have ended the processes of earlier runs."""
    return open_runner(folder, Path.cwd(), os.getpid())


@cache
def open_runner(folder: Path, current: Path, process: int) -> Runner:
    # The report of a crash by pytest-xdist names the program of a worker in its session.
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
    for failure in recover(folder, "" if session == "alone" else session):
        warnings.warn(f"an earlier run ended in {format_whole(failure)}", stacklevel=4)
    path = current / folder / RUNNING / RECORD.format(session, process, token_hex(4))
    emptied = [path.parent] if folder.exists() else [path.parent, current / folder]
    try:
        record = Record(path)
    except UsageError:  # the folder cannot be written
        record = Record(Path(make_folder().name, path.name))
    flock(record.file, LOCK_EX)

    def close() -> None:
        if os.getpid() == process:  # not a fork of it
            record.close()
            with suppress(OSError):  # another process uses the folders
                for emptied_folder in emptied:
                    emptied_folder.rmdir()

    atexit.register(close)
    return Runner(record, lambda event: None)


def keep(
    program: Program,
    divergence: Divergence,
    backend: Backend,
    asked_backend: Backend | str,
    folder: Path,
) -> Failure:
    """Returns the shortest program with this signature; saves it if it is new.

    Args:
        program: the diverging program.
        divergence: the first divergence of the program.
        backend: the backend that ran the program.
        asked_backend: the same backend, as the test passed it: a name or a declaration.
            Commands can find the backend only by a name.
        folder: the folder for failures.
    """
    name = asked_backend if isinstance(asked_backend, str) else backend.name
    is_found = name is asked_backend or name in list_names()
    key = name, divergence.get_signature(program)
    shortest = SHORTEST_SHOWN.get(key)
    if shortest is not None and get_rank(shortest.program) <= get_rank(program):
        return shortest
    small = shorten(program, divergence, backend, folder)
    if shortest is not None and get_rank(shortest.program) <= get_rank(small.program):
        return shortest
    declared = {"versions": dict(backend.versions), "device": backend.device}
    meta: dict[str, Any] = {"found": {"front": "strategy"}, **small.get_meta()}
    facts = small.program, small.divergence, name, get_environment(declared), meta
    failure = save(make_failure(folder, *facts, asked="" if is_found else UNNAMED))
    if shortest is not None and failure.unsaved is None:
        shortest.path.unlink(missing_ok=True)
    SHORTEST_SHOWN[key] = failure
    return failure


def shorten(
    program: Program, divergence: Divergence, backend: Backend, folder: Path
) -> Shrunk:
    avoid = load_known(backend, program.kind)
    limits = SHRINK_SECONDS, avoid, make_busy_clock()
    return get_runner(folder).shrink(program, divergence, backend, *limits)


# --- a running engine -------------------------------------------------------------------


def record(
    cache: Any,
    path: str | Path,
    form: Form | None = None,
    calls: Calls | None = None,
) -> Recording:
    """Records the operations of a running engine on its cache, as programs to replay.

    The cache remains the same object, and records its operations until the recording is
    closed or the `with` block ends. Only operations are recorded, not arrays: `lockstep
    replay` makes new arrays and compares the results with the reference.

    Args:
        cache: the empty cache of the engine. mlx-lm: the list of layer caches, or a list
            with such a list for each request. transformers: the argument
            `cache`. Our caches: a cache, or a list with the cache of each
            layer.
        path: a program file, such as ``run.json``, if all layers have the same form;
            otherwise a folder, which gets a file for each form.
        form: for a cache of another library: the backend that replays the program, the
            contract, and the config of the cache. Pass an empty cache, or the list of the
            caches of equal layers.
        calls: with `form`: name of a method of the cache → a function that gets the
            arguments of a call, and returns its operation, such as
            ``lambda keys, values: {"op": "update", "length": keys.shape[2]}``.

    Raises:
        UsageError: no recorder supports the cache, the cache is not empty, the path
            already has a recording, or form and calls do not fit the cache.
    """
    if (form is None) != (calls is None):
        raise UsageError("record: give form and calls together")
    if form is not None:
        program = {"format": FORMAT, "contract": form.contract, "ops": []}
        parse_program({**program, "config": {**form.config}}, "form")  # raises
    recording = Recording(Path(path), why_not_replayed)
    try:
        if form is None or calls is None:
            find_recorder(cache)(cache, recording)
        else:
            layers = cache if isinstance(cache, list | tuple) else [cache]
            record_calls(layers, form, calls, recording.open_tape)
    except BaseException:
        recording.abandon()
        raise
    return recording
