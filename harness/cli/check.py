"""The command `lockstep check`: the main job."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import click
from rich.console import Console

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
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import Campaign
from lockstep.harness.jobs.outcome import PROFILES, Outcome, Settings
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.reports.console import print_outcome
from lockstep.harness.reports.outcome_file import to_json, write_outcome
from lockstep.harness.reports.progress import Progress, draw_progress, get_check_status
from lockstep.harness.workers.registry import list_names

CHECK_EXAMPLES = """\b
Examples:
  lockstep check                                  all that is installed
  lockstep check --backend torch-cpu --kind kv    one pair
  lockstep check --backend mycache.lockstep:make  your own
  lockstep check --profile nightly --time 3600    as much as an hour allows
"""


@click.command(epilog=CHECK_EXAMPLES, short_help="Runs backends beside the reference.")
@backends_option
@kinds_option
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="ci",
    show_default=True,
    help="Number of programs for each backend and kind: "
    + ", ".join(f"{name} {profile.programs:,}" for name, profile in PROFILES.items()),
)
@click.option(
    "--programs", "count", type=click.IntRange(1), help="Another number of programs."
)
@click.option(
    "--seed",
    "chosen",
    type=int,
    help="Seed of the programs; default: 0, with --profile nightly the current time.",
)
@seconds_option
@click.option(
    "--generator",
    "--front",
    "generator",
    type=click.Choice(list(GENERATORS)),
    default="hypothesis",
    help="Generator of the programs; default: hypothesis.",
)
@jobs_option
@step_option
@strict_option
@failures_option
@json_option
@with_settings
@command
def check(
    settings: Settings,
    profile: str,
    count: int | None,
    chosen: int | None,
    as_json: bool,
) -> int:
    """Runs backends side by side with the reference, and ends in a matrix.

    Exit status: 0 all agree, 1 a divergence, 2 something could not run.
    """
    seed = int(time.time()) if profile == "nightly" else 0
    settings = replace(
        settings,
        programs=count or PROFILES[profile].programs,
        seed=seed if chosen is None else chosen,
    )
    console = Console(stderr=as_json, highlight=False)
    with Progress(console, draw_progress, get_check_status) as progress:
        outcome = Campaign(settings, list(list_names()), progress.show).run()
    require_pairs(outcome)
    try:
        if as_json:
            click.echo(json.dumps(to_json(outcome), indent=1))
        else:
            print_outcome(console, outcome)
    finally:
        write_outcome(settings.failures, outcome)
    return outcome.get_exit_status()


def require_pairs(outcome: Outcome) -> None:
    """Raises UsageError if no backend declares a kind that was asked for."""
    if not outcome.pairs and not outcome.unavailable and not outcome.is_cut:
        kinds = ", ".join(outcome.settings.kinds)
        raise UsageError(f"no chosen backend declares a kind {kinds}")
