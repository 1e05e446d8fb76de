"""The commands `lockstep replay` and `lockstep snippet`: saved programs once more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from lockstep.harness.backends.environment import compare_environments
from lockstep.harness.cli.options import command, print_error, shared
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.files import RUNNING, iterate_saved, load_saved
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.console import print_replayed
from lockstep.harness.workers.messages import Ran, RunProgram, Stopped, WriteSnippet
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import list_names

REPLAY_EXAMPLES = """\b
Examples:
  lockstep replay failures                          all that were saved
  lockstep replay artifact.zip                      those that a CI machine saved
  lockstep replay FILE --backend torch-cpu          on another backend
"""


@click.command(
    epilog=REPLAY_EXAMPLES, short_help="Runs saved programs again: FIXED or FAILED."
)
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH…", type=click.Path(path_type=Path)
)
@shared("backends", "step", "strict", "failures")
@command
def replay(
    paths: Sequence[Path],
    backends: Sequence[str],
    step_seconds: float,
    strict: bool,
    failures: Path,
) -> int:
    """Runs saved programs again: FIXED, FAILED or ERROR for each.

    PATH is a program file, a folder or a zip of them, or a file in a zip, written
    artifact.zip!folder/name.json. Without --backend, each runs on the registered backend
    that its file names. Of a program that no longer fails, the line says what differs
    from the machine that found it.
    """
    console = Console(highlight=False)
    statuses = []
    with Pool(1, failures / RUNNING, step_seconds, strict) as pool:
        for path, program in iterate_saved(list(paths)):
            try:
                if isinstance(program, UsageError):
                    raise program
                for backend in backends or [get_own_backend(path, program)]:
                    event = pool.call(RunProgram(backend, program.to_json()))
                    status, words = judge(event, program)
                    if status == "FIXED" and isinstance(event, Ran):
                        words += format_environment(event, program, backend)
                    print_replayed(console, f"{backend} {path}", status, words)
                    statuses.append(status)
            except UsageError as error:
                print_error(error)
                statuses.append("ERROR")
    return 1 if "FAILED" in statuses else 2 if "ERROR" in statuses else 0


def get_own_backend(path: Path, program: Program) -> str:
    """The backend that a file names, if it is a registered one: a file is data, and what
    it names is not imported."""
    name = program.meta.get("backend")
    if isinstance(name, str) and name in list_names():
        return name
    raise UsageError(f"{path}: names no registered backend; give one with --backend")


def get_single(file: Path) -> Program:
    """The program in a file that has one, which may be in a zip."""
    programs = load_saved(file)
    if len(programs) != 1:
        raise UsageError(f"{file}: holds {len(programs)} programs; give one")
    return programs[0]


def judge(event: Ran | Stopped, program: Program) -> tuple[str, str]:
    """FIXED, FAILED or ERROR, and why."""
    if isinstance(event, Stopped):
        return "ERROR", event.describe()
    divergence = event.divergence
    if divergence is None:
        steps = event.steps
        if program.ops and not steps:
            return "ERROR", f"no step was run; the first: {event.why_skipped}"
        words = "agrees in its one step" if steps == 1 else f"agrees in all {steps} steps"
        if event.skipped:
            words += f"; {event.skipped} skipped, first: {event.why_skipped}"
        return "FIXED", words
    words = f"step {divergence.step} ({divergence.operation}): {divergence.message}"
    before, now = program.meta.get("signature"), divergence.get_signature(program)
    if before and before != now:
        words = f"in another way than before, {now}: {words}"
    return "ERROR" if divergence.is_error else "FAILED", words


def format_environment(event: Ran, program: Program, backend: str) -> str:
    """The differences from the place where a program failed, as the end of a line."""
    words = compare_environments(program.meta, backend, event.get_environment())
    return f"; {words}" if words else ""


# --- snippet ----------------------------------------------------------------------------


SNIPPET_EXAMPLES = """\b
Example:
  lockstep snippet failures/SIGNATURE/FILE.json > bug.py
  python bug.py
"""


@click.command(
    epilog=SNIPPET_EXAMPLES,
    short_help="Prints a failure as code for those who make the cache.",
)
@click.argument("file", type=click.Path(path_type=Path))
@shared("backend", "failures")
@command
def snippet(file: Path, backend: str | None, failures: Path) -> int:
    """Prints a failure as a Python script in the framework's own API.

    It needs nothing of this project, and ends with status 1 as long as the failure is
    there: what a report to the makers of a cache should have.
    """
    program = get_single(file)
    name = backend or get_own_backend(file, program)
    with Pool(1, failures / RUNNING) as pool:
        event = pool.call(WriteSnippet(name, program.to_json()))
    if isinstance(event, Stopped):
        raise UsageError(f"{file}: no snippet: {event.describe()}")
    click.echo(event.text, nl=False)
    return 0
