"""The command `lockstep check`: the main job."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from lockstep.harness.cli.command import command
from lockstep.harness.cli.options import (
    backends_option,
    failures_option,
    jobs_option,
    json_option,
    kinds_option,
    seconds_option,
    step_option,
    strict_option,
)
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import Campaign
from lockstep.harness.jobs.outcome import PROFILES, Settings
from lockstep.harness.programs.generate import FRONTS
from lockstep.harness.reports.console import print_outcome
from lockstep.harness.reports.outcome_file import to_json, write_outcome
from lockstep.harness.reports.progress import Progress, draw_progress, get_status
from lockstep.harness.workers.registry import get_target, list_names

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
    help="Programs for each pair: "
    + ", ".join(f"{name} {profile.programs:,}" for name, profile in PROFILES.items()),
)
@click.option("--programs", type=click.IntRange(1), help="Another number of programs.")
@click.option(
    "--seed", type=int, help="Default 0; for nightly the time, so that nights differ."
)
@seconds_option
@click.option(
    "--front",
    type=click.Choice(list(FRONTS)),
    help="What makes the programs; default: hypothesis.",
)
@jobs_option
@step_option
@strict_option
@failures_option
@json_option
@command
def check(
    backends: Sequence[str],
    kinds: Sequence[str],
    profile: str,
    programs: int | None,
    seed: int | None,
    seconds: float | None,
    front: str | None,
    jobs: int,
    step_time: float,
    strict: bool,
    failures: Path,
    as_json: bool,
) -> int:
    """Runs backends side by side with the reference and ends in a matrix."""
    for name in backends:
        get_target(name)
    if seed is None:
        seed = int(time.time()) if profile == "nightly" else 0
    settings = Settings(
        backends=backends,
        kinds=kinds,
        programs=programs or PROFILES[profile].programs,
        front=front or PROFILES[profile].front,
        seed=seed,
        seconds=seconds,
        jobs=jobs,
        failures=failures,
        step_seconds=step_time,
        strict=strict,
    )
    console = Console(stderr=as_json, highlight=False)
    with Progress(console, draw_progress, get_status) as progress:
        outcome = Campaign(settings, list(list_names()), progress.show).run()
    if not outcome.pairs and not outcome.unavailable and not outcome.is_cut:
        raise UsageError(f"no chosen backend declares a kind {', '.join(kinds)}")
    try:
        if as_json:
            click.echo(json.dumps(to_json(outcome), indent=1))
        else:
            print_outcome(console, outcome)
    finally:
        write_outcome(failures, outcome)
    return outcome.get_exit_status()
