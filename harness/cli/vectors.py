"""The command vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lockstep.harness.cli.frame import printing
from lockstep.harness.cli.options import OPTIONS, command, compose, define, option
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.vectors.sets import export
from lockstep.harness.programs.vectors.files import audit, read_set
from lockstep.harness.programs.vectors.selection import SIZES as SET_SIZES
from lockstep.harness.reports.console import PlainConsole, Progress
from lockstep.harness.reports.jobs import (
    format_audit,
    get_export_status,
    print_export,
)

EXAMPLES = """\b
Examples:
  lockstep vectors -o vectors                       all kinds
  lockstep vectors -o kv --kind kv --size standard  many programs of one kind
  lockstep vectors verify vectors                   is this set complete and right?
  lockstep replay vectors/layer-kv.jsonl -b torch-cpu    does a backend agree?
"""


@click.group(invoke_without_command=True, epilog=EXAMPLES)
@compose(
    option(
        "-o --output folder",
        "Folder of the set, new or empty.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    ),
    option(
        "--size",
        "; ".join(f"{name}: {size.about}" for name, size in SET_SIZES.items()),
        type=click.Choice(list(SET_SIZES)),
        default="small",
        show_default=True,
    ),
    OPTIONS["kinds"],
    OPTIONS["jobs"],
)
@click.pass_context
def vectors(context: click.Context, /, **options: Any) -> None:
    """Writes programs with the expected answers, for engines that run no Python.

    DIR gets one .jsonl file for each kind, a README.md that says how to read them, a JSON
    Schema and a manifest. The same version writes the same bytes.
    """
    if context.invoked_subcommand is None:
        run_export(**options)
    elif options["folder"] is not None:
        raise click.UsageError(
            "-o cannot be used with another command of `lockstep vectors`"
        )


@command
def run_export(settings: Settings, folder: Path | None, size: str) -> int:
    if folder is None:
        raise UsageError("give a folder for the set with -o DIR")
    console = PlainConsole()
    with Progress(console, get_export_status, get_export_status) as progress:
        done = export(folder, size, settings, progress.show)
    print_export(console, done, folder)
    return 0


@define(
    click.argument("folder", metavar="DIR", type=click.Path(path_type=Path)),
    group=vectors,
)
def verify(folder: Path) -> int:
    """Checks that a set is complete, and that its answers are those of the reference.

    To run its programs on a backend, replay its files. Exit status: 0 the set is
    correct; 1 an answer is wrong; 2 the set is malformed.
    """
    console, files = PlainConsole(), read_set(folder)
    differences = [
        difference for path in files for difference in audit(path, files[path])
    ]
    status = 1 if differences else 0
    with printing(lambda: status):
        for difference in differences:
            console.print(make_printable(difference), soft_wrap=True)
        console.print(format_audit(folder, files, differences), soft_wrap=True)
    return status
