"""Defines the commands `check`, `explore` and `faults`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import click

from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.cli.frame import (
    Unprinted,
    print_error,
    print_report,
    print_unsaved,
)
from lockstep.harness.cli.options import define, flag, get_default, option
from lockstep.harness.contracts.contract import SIZES
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.interrupts import shielded
from lockstep.harness.jobs.check import check as run_check
from lockstep.harness.jobs.explore import Exploration
from lockstep.harness.jobs.explore import explore as run_exploration
from lockstep.harness.jobs.faults import find_faults
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.settings import PROFILES, Settings
from lockstep.harness.programs.files import OUTCOME
from lockstep.harness.reports.console import (
    Pace,
    PlainConsole,
    Progress,
    draw_progress,
    get_check_status,
    print_outcome,
)
from lockstep.harness.reports.jobs import (
    explore_to_json,
    get_exploration_status,
    get_search_status,
    print_exploration,
    print_searches,
)
from lockstep.harness.reports.outcome_file import to_json, write_outcome
from lockstep.harness.workers.registry import list_names

MOST_PROGRAMS = 10_000_000
"""The largest number of `--programs`: a job lists the slices of all its programs."""

# --- check, explore and faults ----------------------------------------------------------


@define(
    *("backends", "kinds"),
    option(
        "--profile",
        "Programs for each backend and kind: "
        + ", ".join(f"{name} {profile}" for name, profile in PROFILES.items())
        + ". Between the two numbers, a pair ends as soon as each cell (an operation in"
        " an abstract state) that it has reached was reached three times.",
        type=click.Choice(list(PROFILES)),
        default=lambda: get_default("profile")() or "ci",
        show_default="ci",
    ),
    option(
        "--programs count",
        "Number of programs for each backend and kind, instead of the profile's.",
        type=click.IntRange(1, MOST_PROGRAMS),
    ),
    option(
        "--seed chosen",
        "Seed of the programs; default: 0, for --profile nightly the current time.",
        type=int,
    ),
    "seconds",
    flag(
        "--require-complete",
        "End with exit status 2 if a program was not run, or a cell not reached.",
    ),
    flag(
        "-v --verbose",
        "For each backend and kind, list what was run, what cannot be checked, and"
        " which cells were missed.",
    ),
    *("jobs", "step", "start", "strict", "server", "failures", "json"),
)
def check(
    settings: Settings,
    profile: str,
    count: int | None,
    chosen: int | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Runs backends side by side with the reference, and prints a matrix.

    The outcome is saved as outcome.json in the folder for failures. Exit status: 0 all
    agree; 1 a backend diverges, crashes or hangs; 2 something was not run.

    Examples:
      lockstep check                                  all that is installed
      lockstep check --backend torch-cpu --kind kv    one backend and kind
      lockstep check --backend mycache.lockstep:make  your own
      lockstep check --profile nightly --time 3600    as much as an hour allows
    """
    seed = int(time.time()) if profile == "nightly" else 0
    chosen_profile = PROFILES[profile]
    settings = replace(
        settings,
        programs=count or chosen_profile.programs,
        least=None if count else chosen_profile.least,
        seed=seed if chosen is None else chosen,
    )
    console = PlainConsole(stderr=as_json)
    names = [name for name in list_names() if name != REFERENCE_NAME]
    started = Outcome(settings)
    if not settings.backends:
        console.print(EVERYTHING)
    with kept(started) as outcome:
        pace = Pace()
        draw = partial(draw_progress, pace, console.width)
        shown = draw, partial(get_check_status, pace)
        with Progress(console, *shown) as progress:
            run_check(outcome, names, progress.show)
        if outcome.unwritten:
            print_error(outcome.unwritten)
        show = partial(print_outcome, console, outcome, verbose=verbose)
        print_report(outcome, as_json, to_json, show)
    return outcome.get_exit_status()  # it is 2 if the outcome could not be written


EVERYTHING = (
    "All registered backends; your own: --backend MODULE:FACTORY, exec:PROGRAM or"
    " http://HOST:PORT"
)


@contextmanager
def kept(outcome: Outcome) -> Iterator[Outcome]:
    """Writes the outcome to the folder for failures, even if the `with` body raises."""
    is_refused = False
    try:
        yield outcome
    except KeyboardInterrupt as interrupt:
        outcome.stop(interrupt)
        raise
    except UsageError as error:
        is_refused = not isinstance(error, Unprinted)
        raise
    finally:
        if not is_refused:
            with shielded():
                keep(outcome)


def keep(outcome: Outcome) -> None:
    """Writes the outcome; if that fails, prints unsaved programs on standard error."""
    try:
        write_outcome(outcome)
    except OSError as error:
        path = outcome.settings.failures / OUTCOME
        outcome.unwritten = f"{path}: cannot be written: {error.strerror or error}"
        print_error(outcome.unwritten)
        print_unsaved(outcome.failures)


# --- explore ----------------------------------------------------------------------------


@define(
    *("backends", "kinds"),
    option(
        "--depth",
        "Number of operations in the longest programs.",
        type=click.IntRange(1, 16),
        default=4,
        show_default=True,
        metavar="N",
    ),
    option(
        "--size",
        "Size of the domain: about 8 or 20 operations.",
        type=click.Choice(SIZES),
        default="small",
        show_default=True,
    ),
    "seconds",
    *("jobs", "step", "start", "strict", "server", "failures", "json"),
)
def explore(settings: Settings, depth: int, size: str, as_json: bool) -> int:
    """Runs every program up to a length over a small domain.

    A domain is a small config and a few operations with all their arguments. Operations
    that a backend does not declare are skipped.

    Examples:
      lockstep explore --backend torch-cpu --kind rotating --depth 5
      lockstep explore --backend mycache:make --size tiny --depth 7
      lockstep explore --kind trie --depth 6 --time 600     for ten minutes
    """
    console = PlainConsole(stderr=as_json)
    with Progress(console, get_exploration_status, get_exploration_status) as progress:
        names = [name for name in list_names() if name != REFERENCE_NAME]
        begun = Exploration(size, depth, Outcome(settings))
        exploration = run_exploration(begun, names, progress.show)
    show = partial(print_exploration, console, exploration)
    return print_report(
        exploration.outcome, as_json, lambda _: explore_to_json(exploration), show
    )


# --- faults -----------------------------------------------------------------------------


@define(
    "given",
    option(
        "--fault ids",
        "Look for this mistake only; may be repeated.",
        multiple=True,
        metavar="ID",
    ),
    option(
        "--programs",
        "Give up on a mistake after this many programs.",
        type=click.IntRange(1, MOST_PROGRAMS),
        default=2000,
        show_default=True,
    ),
    "seed",
    *("jobs", "step", "start", "failures", "json"),
)
def faults(settings: Settings, ids: Sequence[str], as_json: bool) -> int:
    """Tests the check itself: looks for mistakes that are planted in backends.

    Exit status: 0 all are found; 1 a mistake survives; 2 something could not run.

    Examples:
      lockstep faults                                 all, in every backend that has some
      lockstep faults --backend torch-cpu --jobs 1    in one backend, on one core
      lockstep faults --fault shift-twice --seed 7    one mistake, with other programs
    """
    console = PlainConsole(stderr=as_json)
    with Progress(console, get_search_status, get_search_status) as progress:
        names = list(list_names())
        searches = find_faults(settings, names, ids, progress.show)
    show = partial(print_searches, console, searches)
    return print_report(searches, as_json, type(searches).to_json, show)
