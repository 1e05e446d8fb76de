"""The command `lockstep faults`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Console

from lockstep.harness.cli.options import (
    backends_option,
    command,
    failures_option,
    jobs_option,
    json_option,
    step_option,
    with_settings,
)
from lockstep.harness.jobs.faults import Hunt
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.reports.faults import get_search_status, print_searches
from lockstep.harness.reports.progress import Progress
from lockstep.harness.workers.registry import list_names

FAULTS_EXAMPLES = """\b
Examples:
  lockstep faults                                 all, in every backend that has some
  lockstep faults --backend torch-cpu --jobs 1    in one backend, on one core
  lockstep faults --fault shift-twice --seed 7    one of them, other programs
"""


@click.command(epilog=FAULTS_EXAMPLES, short_help="Looks for planted mistakes.")
@backends_option
@click.option(
    "--fault",
    "ids",
    multiple=True,
    metavar="ID",
    help="Look for this fault only; may be repeated.",
)
@click.option(
    "--programs",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="A fault that this many programs do not show counts as not found.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@jobs_option
@step_option
@failures_option
@json_option
@with_settings
@command
def faults(settings: Settings, ids: Sequence[str], as_json: bool) -> int:
    """Looks for the mistakes that are planted in backends, to see that they are found.

    Exit status: 0 all are found, 1 a mistake survives, 2 something could not run.
    """
    console = Console(stderr=as_json, highlight=False)
    with Progress(console, get_search_status, get_search_status) as progress:
        searches = Hunt(settings, list(list_names()), ids, progress.show).run()
    if as_json:
        click.echo(json.dumps(searches.to_json(), indent=1))
    else:
        print_searches(console, searches)
    return searches.get_exit_status()
