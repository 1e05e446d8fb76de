"""What tests of other projects import: programs as a strategy of Hypothesis, and a run.

`lockstep` has all of it, as `lockstep.programs` and so on.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import example
from hypothesis import strategies as st

from lockstep.harness.backends.backend import Backend, get_environment
from lockstep.harness.cli.project import load_project
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import get_named
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import Result
from lockstep.harness.execution.metamorphic.reference import get_reference
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.shrink import Shrunk, get_rank, make_busy_clock
from lockstep.harness.jobs.failures import Failure, make_failure, save
from lockstep.harness.programs.files import is_record, iterate_saved
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.hypothesis import LEAST, make_strategy
from lockstep.harness.programs.ledger import Entry, load_ledger, why_unsupported
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_program,
    why_too_large,
)
from lockstep.harness.programs.recording import Recording
from lockstep.harness.reports.console import PlainConsole, print_failure
from lockstep.harness.workers.recorders import find_recorder, why_not_replayed
from lockstep.harness.workers.registry import list_names, load
from lockstep.harness.workers.runner import Runner

SHRINK_SECONDS = 10.0
MOST_EXAMPLES = 100
"""Programs that `examples` takes from a folder."""

WIDTH = 100
"""Columns of the message of `Diverged`."""

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
        kind: of that contract, such as "kv".
        backend: draw only what it declares, and nothing that leads to a known divergence
            of its ledger; a declaration or a name. None for all that the contract has.
        max_ops: the most operations of a program; None for as many as are usual: 36 to
            84, now and then 240.
        seeded: has no effect any more; Hypothesis draws each choice.

    Raises:
        UsageError: there is no such contract or kind, the backend does not declare it, or
            `max_ops` is less than 1.
        Unavailable: the backend needs something that is not here.
    """
    if max_ops is not None and max_ops < 1:
        raise UsageError(f"max_ops={max_ops}: a program has at least one operation")
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
    """Imports a backend into this process, from where the commands import it, too: the
    folders of the project's settings, and the current one."""
    for folder in (*load_project().python_path, Path()):
        path = str(folder.absolute())
        if path not in sys.path:
            sys.path.append(path)
    return load(name)


def get_backend(backend: Backend | str) -> Backend:
    return load_backend(backend) if isinstance(backend, str) else backend


def parse(document: Mapping[str, Any]) -> Program:
    """Returns the program of a document, as files and the messages of failures have it.

    Raises:
        UsageError: it is no program.
    """
    return parse_program(document, "the document")


def examples(
    folder: str | Path, kind: str | None = None, backend: Backend | str | None = None
) -> Callable[[Test], Test]:
    """Gives a Hypothesis test the programs that failed before: it runs them first.

    To be written above `@given`, for a test whose argument is `program`. A folder that is
    not there or empty has no programs; files that are none are passed over.

    Args:
        folder: of failures, or a file.
        kind: only programs of this kind; None for all.
        backend: only programs that it can be asked to run, whichever backend they failed
            on; a declaration or a name. None for all.

    Raises:
        UsageError: there is no such backend, or a zip is refused.
        Unavailable: the backend needs something that is not here.
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
    """Lists the programs of a file or a folder; a folder may have none, or not exist.

    Write-ahead records in a folder are passed over. Their programs may be running, in
    another process, or have ended one.
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

    Each signature has a class of its own, so that Hypothesis tells the failures apart.

    Attributes:
        failure: the shortest program that shows the signature so far, and its file.
    """

    def __init__(self, failure: Failure) -> None:
        text = StringIO()
        text.write(f"{failure.signature}: {failure.divergence.message}\n")
        print_failure(PlainConsole(file=text, width=WIDTH), failure)
        super().__init__(text.getvalue())
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

    A test of Hypothesis runs hundreds of programs that fail while it looks for a simple
    one. The first of each signature is shortened at once, as `lockstep shrink` does, in
    steps that a person would take, and saved; later ones if they are simpler.

    Args:
        program: see `programs`.
        backend: a declaration or a name, as `lockstep check --backend` takes it. One that
            may end the process is checked better by the fixture `lockstep_check`.
        failures: folder for failing programs; `lockstep replay` runs them again.

    Returns:
        What ran: steps, and those that were left out.

    Raises:
        Diverged: they differ.
        UsageError: the backend does not declare what the program needs.
        Unavailable: the backend needs something that is not here.
    """
    loaded = get_backend(backend)
    reason = why_too_large(program) or why_unsupported(program, loaded)
    if reason:
        raise UsageError(f"{loaded.name} cannot run this program: {reason}")
    result = get_runner().run_both(program, loaded, load_known(loaded, program.kind))
    if result.divergence is not None:
        failure = keep(program, result.divergence, loaded, backend, Path(failures))
        raise get_class(failure.signature)(failure)
    return result


def load_known(backend: Backend, kind: str) -> Sequence[Entry]:
    """Returns the ledger of a kind."""
    return load_entries(backend.ledger, backend.name, kind)


load_entries = cache(load_ledger)


@cache
def make_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lockstep-")


@cache
def get_runner() -> Runner:
    return Runner(Record(Path(make_folder().name) / "record.json"), lambda event: None)


def keep(
    program: Program,
    divergence: Divergence,
    backend: Backend,
    asked_backend: Backend | str,
    folder: Path,
) -> Failure:
    """Returns the shortest program with this signature; saves it if it is new.

    Args:
        program: diverges, as `divergence` says.
        divergence: the first one of the program.
        backend: ran it.
        asked_backend: the same, as the test names it. No command finds what is no name.
        folder: of failures.
    """
    name = asked_backend if isinstance(asked_backend, str) else backend.name
    is_found = name is asked_backend or name in list_names()
    key = name, divergence.get_signature(program)
    shortest = SHORTEST_SHOWN.get(key)
    if shortest is not None and get_rank(shortest.program) <= get_rank(program):
        return shortest
    small = shorten(program, divergence, backend)
    if shortest is not None and get_rank(shortest.program) <= get_rank(small.program):
        return shortest
    declared = {"versions": dict(backend.versions), "device": backend.device}
    meta: dict[str, Any] = {"found": {"front": "strategy"}}
    if small.flaky is not None:
        meta["flaky"] = str(small.flaky)
    facts = small.program, small.divergence, name, get_environment(declared), meta
    failure = save(
        make_failure(folder, *facts, asked="" if is_found else "MODULE:FACTORY")
    )
    if shortest is not None and failure.unsaved is None:
        shortest.path.unlink(missing_ok=True)
    SHORTEST_SHOWN[key] = failure
    return failure


def shorten(program: Program, divergence: Divergence, backend: Backend) -> Shrunk:
    avoid = load_known(backend, program.kind)
    limits = SHRINK_SECONDS, avoid, make_busy_clock()
    return get_runner().shrink(program, divergence, backend, *limits)


# --- a running engine -------------------------------------------------------------------


def record(cache: Any, path: str | Path) -> Recording:
    """Records what a running engine does with its cache, as programs to replay.

    The cache stays the object that it is, and notes its operations until the recording is
    closed, or the `with` block ends. The operations are kept, not the arrays: `lockstep
    replay` checks them with arrays of its own, beside the reference.

    Args:
        cache: empty, as the engine makes it: of mlx-lm the list of layer caches, or a
            list of such lists, one for each request; of transformers what is passed as
            `past_key_values`; of our own caches one, or a list of layers.
        path: a program file, ``run.json``, if all layers are of one sort; otherwise a
            folder, which gets a file for each sort of layer.

    Raises:
        UsageError: nothing records such a cache, it is not empty, or there is a recording
            at the path already.
    """
    recording = Recording(Path(path), why_not_replayed)
    try:
        find_recorder(cache)(cache, recording)
    except BaseException:
        recording.leave()
        raise
    return recording
