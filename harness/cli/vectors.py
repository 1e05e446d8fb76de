"""The command vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from lockstep.harness.cli.frame import printing
from lockstep.harness.cli.options import command, shared
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.vectors.export import (
    GENERATOR,
    audit_set,
    export,
)
from lockstep.harness.jobs.vectors.export import (
    verify as run_set,
)
from lockstep.harness.programs.vectors.selection import SIZES as SET_SIZES
from lockstep.harness.reports.console import PlainConsole, Progress
from lockstep.harness.reports.jobs import (
    format_audit,
    get_audit_status,
    get_export_status,
    get_run_status,
    list_problems,
    print_export,
    print_verification,
    verification_to_json,
)

VECTORS_EXAMPLES = """\b
Examples:
  lockstep vectors -o vectors                       all kinds
  lockstep vectors -o kv --kind kv --size standard  many programs of one kind
  lockstep vectors verify vectors                   is this set complete and right?
"""

VERIFY_EXAMPLES = """\b
Examples:
  lockstep vectors verify vectors                   the set itself
  lockstep vectors verify vectors --backend torch-cpu --backend mlx-cpu
"""

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group(invoke_without_command=True, epilog=VECTORS_EXAMPLES)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the set: new, empty, or with a set to replace.",
)
@click.option(
    "--size",
    type=click.Choice(list(SET_SIZES)),
    default="small",
    show_default=True,
    help="Size of the set. "
    + "; ".join(f"{name}: {size.about}" for name, size in SET_SIZES.items())
    + ".",
)
@shared("kinds", "jobs")
@click.pass_context
def vectors(
    context: click.Context,
    folder: Path | None,
    size: str,
    kinds: Sequence[str],
    jobs: int,
) -> None:
    """Writes programs with what the reference expects, for engines that run no Python.

    DIR gets one .jsonl file for each kind, a README.md that says how to read them, a JSON
    Schema and a manifest. The same version writes the same bytes.
    """
    if context.invoked_subcommand is None:
        run_export(folder, size, kinds, jobs)
    elif folder is not None:
        raise click.UsageError("-o does not go together with another command")


@command
def run_export(folder: Path | None, size: str, kinds: Sequence[str], jobs: int) -> int:
    if folder is None:
        raise UsageError("give a folder for the set with -o DIR")
    console = PlainConsole()
    with Progress(console, get_export_status, get_export_status) as progress:
        work = export(folder, size, kinds, jobs, progress.show)
    print_export(console, work, folder)
    return 0


@vectors.command(epilog=VERIFY_EXAMPLES, short_help="Checks a set, and runs it.")
@folder_argument
@shared("given", "jobs", "step", "start", "failures", "json")
@command
def verify(settings: Settings, folder: Path, as_json: bool) -> int:
    """Checks that a set is complete and that the reference here expects what it says.

    With --backend, also runs its programs there. Exit status: 0 all agree, 1 a
    divergence, 2 the set is damaged, or something could not run.
    """
    console = PlainConsole(stderr=as_json)
    with Progress(console, get_audit_status, get_audit_status) as progress:
        audit = audit_set(folder, settings.jobs, progress.show)
    status, outcome = audit.get_exit_status(), None
    if status == 0 and settings.backends:
        settings = replace(settings, generator=GENERATOR)
        with Progress(console, get_run_status, get_run_status) as running:
            outcome = run_set(Outcome(settings), audit.programs, running.show)
        status = outcome.get_exit_status()
    with printing(lambda: status):
        if as_json:
            click.echo(json.dumps(verification_to_json(audit, outcome, status), indent=1))
            return status
        for problem in list_problems(audit):
            console.print(problem, soft_wrap=True)
        console.print(format_audit(audit), soft_wrap=True)
        if outcome is not None:
            print_verification(console, outcome)
    return status
