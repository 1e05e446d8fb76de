"""Runs saved programs again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from lockstep.harness.backends.backend import compare_environments
from lockstep.harness.core.errors import UsageError, clean, shorten
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import iterate_saved, load_saved
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    read_beside,
    read_flaky,
)
from lockstep.harness.workers.messages import (
    Described,
    Excluded,
    HarnessFailed,
    Ran,
    RunProgram,
    Stopped,
)
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import list_names

FORMAT = "lockstep-replayed/1"

Status = Literal["FIXED", "AGREES", "EXCLUDED", "FAILED", "FLAKY", "ERROR"]

AGREEING = ("FIXED", "AGREES")
"""The statuses of agreeing programs: FIXED if the program failed before, else AGREES."""


class Replayed(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of one program on one backend.

    Attributes:
        backend: the backend; None if the file names no usable backend.
        words: a description of the result, or why the program could not run.
        signature: the signature of the divergence; None without a divergence.
    """

    path: str
    backend: str | None
    status: Status
    words: str
    signature: str | None = None


def find_backend(named: object, settings: Settings) -> str | None:
    """Returns the backend for a saved program; None if no backend can be used.

    Files are not trusted: the backend of a file is not imported unless the user has named
    it, too, or it is registered.

    Args:
        named: the backend in the file.
        settings: the settings with the backends of --backend and of the project. A file
            without a backend runs on the first of these backends; any other file runs on
            its own backend or on none.
    """
    given = [*settings.backends, *settings.trusted]
    if isinstance(named, str):
        return named if named in {*list_names(), *given} else None
    return given[0] if given else None


def get_own_backend(path: Path, program: Program, settings: Settings) -> str:
    """Returns the backend of `find_backend`. Raises UsageError for None."""
    named = program.meta.get("backend")
    backend = find_backend(named, settings)
    if backend is None:
        note = f" (it names {clean(named)})" if isinstance(named, str) and named else ""
        raise UsageError(f"{path}: names no registered backend{note}; give one {WHERE}")
    return backend


def list_backends(path: Path, program: Program, settings: Settings) -> Sequence[str]:
    """Returns the backends that the user named, except for those that only run beside
    the backend of the file; without any, the backend of the file."""
    others = read_beside(program.meta)
    chosen = [name for name in settings.backends if name not in others]
    return chosen or settings.backends or [get_own_backend(path, program, settings)]


def find_beside(program: Program, backend: str, settings: Settings) -> list[str]:
    """Returns the backends beside which a saved program diverged. Returns none if one of
    them may not be imported; see `find_backend`."""
    names = [name for name in read_beside(program.meta) if name != backend]
    usable = {*settings.backends, *settings.trusted, *list_names()}
    return names if usable.issuperset(names) else []


def why_alone(program: Program, beside: Sequence[str]) -> str:
    """Returns what to do about a program that diverged beside other backends, but ran
    alone; else ""."""
    names = "" if beside else ", ".join(map(clean, read_beside(program.meta)))
    ran = f"; it ran alone, but diverged beside {names}"
    return (
        f"{ran}; name these, too, with --backend or in [tool.lockstep]" if names else ""
    )


WHERE = "with --backend, or in [tool.lockstep] of pyproject.toml"


def get_single(paths: Sequence[Path], why: str) -> tuple[Path, Program]:
    """Returns the only program at `paths`, and its path.

    Args:
        paths: files and folders.
        why: the subject of the error message, which needs the program.

    Raises:
        UsageError: there are several programs.
    """
    saved = load_saved(paths)
    if len(saved) > 1:
        names = shorten(", ".join(str(path) for path, _ in saved), 1000)
        raise UsageError(
            f"{why} needs exactly one program, but {len(saved)} were given: {names}"
        )
    return saved[0]


def get_replay_status(results: Sequence[Replayed]) -> Literal[0, 1, 2]:
    """Returns the exit status of the command."""
    statuses = {result.status for result in results}
    return 1 if statuses & {"FAILED", "FLAKY"} else 2 if "ERROR" in statuses else 0


def replayed_to_json(results: Sequence[Replayed]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "exit_status": get_replay_status(results),
        "replayed": [structs.asdict(result) for result in results],
    }


def replay_paths(
    pool: Pool, paths: Sequence[Path], settings: Settings
) -> Iterator[Replayed]:
    """Runs saved programs again, each on the backends of `list_backends`."""
    for path, program in iterate_saved(paths):
        try:
            if isinstance(program, UsageError):
                raise program
            for backend in list_backends(path, program, settings):
                beside = find_beside(program, backend, settings)
                ran, failed_on = program, program.meta.get("backend")
                if failed_on in settings.backends and failed_on != backend:
                    ran = replace(program, meta={})  # it never failed on this backend
                yield run_again(pool, path, ran, backend, beside)
        except UsageError as error:
            yield Replayed(str(path), None, "ERROR", str(error))


def run_again(
    pool: Pool, path: Path, program: Program, backend: str, beside: list[str]
) -> Replayed:
    """Runs a program on a backend; a flaky program runs as often as when it was found."""
    flaky = read_flaky(program.meta)
    runs = 1 if flaky is None else flaky.runs
    event = pool.call(RunProgram(backend, program.to_json(), runs, beside))
    return make_replayed(path, program, backend, event, beside)


def make_replayed(
    path: Path,
    program: Program,
    backend: str,
    event: Ran | Stopped,
    beside: Sequence[str] = (),
) -> Replayed:
    status, message = judge(event, program, read_flaky(program.meta), beside)
    if isinstance(event, HarnessFailed):
        message += f"; please report this with {path}"
    if status in AGREEING and isinstance(event, Ran):
        message += format_environment(event, program, backend)
    divergence = get_divergence(event)
    signature = None if divergence is None else divergence.get_signature(program)
    return Replayed(str(path), backend, status, message, signature)


def get_divergence(event: Ran | Stopped) -> Divergence | None:
    """Returns the divergence of a result. A crash counts as a divergence if a program was
    running."""
    if isinstance(event, Ran):
        return event.divergence
    blamed = event.blame()
    return None if blamed is None else blamed[1]


def judge(
    event: Ran | Stopped,
    program: Program,
    flaky: Flaky | None = None,
    beside: Sequence[str] = (),
) -> tuple[Status, str]:
    """Returns the status of a result, and a message with the reason.

    Args:
        event: the result.
        program: the program that ran again.
        flaky: set if the program does not fail in every run; if it agrees now, the status
            is FLAKY and not FIXED.
        beside: the backends beside which the program ran. It is FLAKY, too, if it
            diverges only beside them, or agrees alone but diverged beside others.
    """
    if isinstance(event, Stopped):
        blamed = event.blame()
        if blamed is None:
            status: Status = "EXCLUDED" if isinstance(event, Excluded) else "ERROR"
            return status, event.describe()
        return judge_divergence(blamed[1], program)
    rate = (
        f"flaky: failed {event.failed} of {flaky.runs} now, {flaky} when it was found"
        if flaky is not None
        else ""
    )
    if event.divergence is not None:
        status, message = judge_divergence(event.divergence, program)
        return status, f"{rate}: {message}" if rate else message
    if rate:
        return "FLAKY", rate
    steps = event.steps
    if program.ops and not steps:
        return "ERROR", f"no step was run; the first: {event.why_skipped}"
    message = "agrees in its one step" if steps == 1 else f"agrees in all {steps} steps"
    if event.skipped:
        message += f"; {event.skipped} skipped, first: {event.why_skipped}"
    if alone := why_alone(program, beside):
        return "FLAKY", message + alone
    return "FIXED" if program.meta.get("signature") else "AGREES", message


def judge_divergence(divergence: Divergence, program: Program) -> tuple[Status, str]:
    message = f"step {divergence.step} ({divergence.operation}): {divergence.message}"
    former, signature = program.meta.get("signature"), divergence.get_signature(program)
    if former and former != signature:
        message = f"in another way than before, {signature}: {message}"
    if divergence.is_unwritten:
        return "ERROR", message
    return "FLAKY" if divergence.beside else "FAILED", message


def format_environment(event: Ran, program: Program, backend: str) -> str:
    """Describes the differences from the environment in which a program failed."""
    message = compare_environments(program.meta, backend, event.get_environment())
    return f"; {message}" if message else ""


# --- known divergences ------------------------------------------------------------------


def make_entry(
    described: Described,
    program: Program,
    texts: tuple[str, str, str | None],
) -> dict[str, Any]:
    """Makes the ledger entry of a failing program. texts: verdict, reason and link."""
    divergence, backend = described.divergence, described.name
    program = replace(program, ops=program.ops[: divergence.step + 1], meta={})
    what = f"{program.kind}-{divergence.operation}-{divergence.what}"
    verdict, reason, link = texts
    return {
        "id": re.sub(r"[^a-z0-9]+", "-", f"{backend}-{what}".lower()),
        "backend": backend,
        "kind": program.kind,
        "operation": divergence.operation,
        "signature": divergence.get_signature(program),
        "verdict": verdict,
        "reason": reason,
        "link": link,
        "versions": described.versions,
        "when": described.when,
        "program": program.to_json(),
        "got": divergence.message,
    }


def describe_test(described: Described, program: Program) -> str:
    """Describes how exactly a condition separates the operations that diverge."""
    operation = program.ops[described.step]["op"]
    if not described.diverging:
        return f"`when` is not tested: no {operation} diverged; give more --programs"
    text = "`when` is exact" if described.is_exact else "complete `when`"
    return (
        f"{text}: in programs that were not used to infer it, it describes"
        f" {described.diverging - described.missed} of {described.diverging} {operation}"
        f" that diverge, and {described.included} of {described.agreeing} that agree"
    )
