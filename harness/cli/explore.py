"""The command `lockstep explore`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.cli.check import require_pairs
from lockstep.harness.cli.options import (
    backends_option,
    command,
    failures_option,
    jobs_option,
    json_option,
    kinds_option,
    seconds_option,
    step_option,
    strict_option,
    with_settings,
)
from lockstep.harness.contracts.domain import SIZES
from lockstep.harness.jobs.explore import Explorer
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.reports.explore import (
    describe,
    get_exploration_status,
    print_exploration,
)
from lockstep.harness.reports.progress import Progress
from lockstep.harness.workers.registry import list_names

EXPLORE_EXAMPLES = """\b
Examples:
  lockstep explore --backend torch-cpu --kind rotating --depth 5
  lockstep explore --backend mycache:make --size tiny --depth 7
  lockstep explore --kind trie --depth 6 --time 600     ten minutes of it …
  lockstep explore --kind trie --depth 6 --resume       … and the rest
"""


@click.command(epilog=EXPLORE_EXAMPLES, short_help="Runs every program up to a length.")
@backends_option
@kinds_option
@click.option(
    "--depth",
    type=click.IntRange(1, 16),
    default=4,
    show_default=True,
    metavar="N",
    help="Length of the longest programs, in operations.",
)
@click.option(
    "--size",
    type=click.Choice(SIZES),
    default="small",
    show_default=True,
    help="Number of operations in the domain: about 8, 20 or 35.",
)
@seconds_option
@click.option("--resume", is_flag=True, help="Continue where an earlier run has stopped.")
@jobs_option
@step_option
@strict_option
@failures_option
@json_option
@with_settings
@command
def explore(
    settings: Settings, depth: int, size: str, resume: bool, as_json: bool
) -> int:
    """Runs every program up to a length over a small domain, and says what is covered.

    A domain has few operations, with all their numbers, and a small config. Operations
    that a backend does not declare are skipped.
    """
    console = Console(stderr=as_json, highlight=False)
    with Progress(console, get_exploration_status, get_exploration_status) as progress:
        names = [name for name in list_names() if name != REFERENCE_NAME]
        explorer = Explorer(settings, names, size, depth, resume, progress.show)
        exploration = explorer.explore()
    outcome = exploration.outcome
    require_pairs(outcome)
    if as_json:
        click.echo(json.dumps(describe(exploration), indent=1))
    else:
        print_exploration(console, exploration)
    return outcome.get_exit_status()
