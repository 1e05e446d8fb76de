"""Defines the command `lockstep campaign`: checks that can be continued, on one or
many machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from lockstep.harness.cli.frame import print_error, print_report, print_unsaved
from lockstep.harness.cli.options import Seconds, define, option
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, open_folder
from lockstep.harness.jobs.campaign.campaign import Campaign, begin, merge
from lockstep.harness.jobs.campaign.runners import LocalRunner, Runner
from lockstep.harness.jobs.campaign.terms import (
    SLICE,
    Terms,
    require_named,
    require_terms,
    require_version,
)
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.pools import count_workers, open_pool
from lockstep.harness.jobs.settings import PROFILES, Settings
from lockstep.harness.reports.console import (
    Pace,
    PlainConsole,
    Progress,
    describe_state,
    draw_progress,
    get_check_status,
    print_outcome,
)
from lockstep.harness.reports.outcome_file import summarize, to_json
from lockstep.harness.reports.pages.gather import (
    Material,
    Stage,
    add_outcome,
    make_report,
)
from lockstep.harness.reports.pages.html import render_html, save_page
from lockstep.harness.workers.registry import list_names

EXAMPLES = """\b
Examples:
  lockstep campaign start night --time 28800      eight hours on this machine
  lockstep campaign resume night                  what is left of it
  lockstep campaign report night                  how far it is, what it has found
"""


@click.group(epilog=EXAMPLES)
def campaign() -> None:
    """Runs checks until a budget is spent, and keeps their state in a folder.

    FOLDER is a folder, or a URL that fsspec knows, such as s3://bucket/night. You can
    stop a campaign at any time; `resume` continues it.
    """


FOLDER = click.argument("location", metavar="FOLDER")


# --- it runs ----------------------------------------------------------------------------


def read_shard(context: click.Context, parameter: Any, value: str | None) -> Any:
    """Reads the numbers in "1/3"."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", value)
    if not match or int(match[1]) > int(match[2]):
        raise click.BadParameter(f"{value} is not I/N, with I from 1 to N")
    return int(match[1]), int(match[2])


PROGRAMS = PROFILES["nightly"].programs

WHERE = (
    option(
        "--gpu",
        "Share of a GPU that each worker requests under Ray.",
        type=click.FloatRange(0.01, 1),
        default=0.25,
        show_default=True,
        metavar="X",
    ),
    option(
        "--ray address",
        "Run shards on a Ray cluster: host:port, or auto for the one that this machine"
        " belongs to; without ADDRESS, on this machine.",
        is_flag=False,
        flag_value="local",
        metavar="[ADDRESS]",
    ),
    "jobs",
)


@define(
    FOLDER,
    *("backends", "kinds"),
    option(
        "--programs",
        f"Programs for each backend and kind; default: {PROGRAMS:,}",
        type=click.IntRange(1, 1 << 53),
        metavar="N",
    ),
    option("--time seconds", "Or S seconds.", type=Seconds(1), metavar="S"),
    "seed",
    option(
        "--slice",
        "Programs in a shard.",
        type=click.IntRange(1, 1 << 53),
        default=SLICE,
        metavar="N",
    ),
    option(
        "--shard",
        "Run the I-th of N parts; `merge` puts them together.",
        callback=read_shard,
        metavar="I/N",
    ),
    *(*WHERE, "step", "start", "strict", "server"),
    group=campaign,
)
def start(
    location: str,
    backends: Sequence[str],
    kinds: Sequence[str],
    programs: int | None,
    seconds: float | None,
    jobs: int,
    address: str | None,
    gpu: float,
    probe: Path | None,
    **options: Any,
) -> int:
    """Begins a campaign, and runs it until its budget is spent.

    The budget is a number of programs for each backend and kind, or of seconds. Exit
    status: 0 all agree; 1 a backend diverges, crashes or hangs; 2 something was not run.

    Examples:
      lockstep campaign start night --backend torch-cpu --time 3600
      lockstep campaign start night --programs 25000 --shard 1/3   a third of it here
      lockstep campaign start s3://bucket/night --time 28800 --ray auto
    """
    if programs and seconds:
        raise UsageError("--programs and --time were both given; give only one of them")
    terms = Terms(
        backends=list(dict.fromkeys(backends)),
        kinds=list(dict.fromkeys(kinds)),
        programs=None if seconds else programs or PROGRAMS,
        seconds=seconds,
        probe=str(probe) if probe else None,
        **options,
    )
    folder = open_folder(location)
    begin(folder, terms)
    return run(folder, terms, jobs, address, gpu)


@define(FOLDER, "given", *WHERE, group=campaign)
def resume(settings: Settings, location: str, address: str | None, gpu: float) -> int:
    """Continues a stopped campaign with the rest of its budget.

    Finished shards do not run again. Other machines may take part. Name a backend again
    with --backend if it is neither registered nor in the project's settings: the folder
    may come from somebody else.
    """
    folder = open_folder(location)
    terms = require_terms(folder)
    require_named(location, terms, settings)
    require_version(folder.location, terms)
    return run(folder, terms, settings.jobs, address, gpu)


def run(folder: Folder, terms: Terms, jobs: int, address: str | None, gpu: float) -> int:
    console, work = PlainConsole(), Campaign(folder, terms)

    def open_runner() -> Runner:
        if address is None:
            return LocalRunner(count_workers(terms.backends, jobs))
        from lockstep.harness.jobs.campaign.cluster import RayRunner

        return RayRunner(address, gpu, jobs)

    pace = Pace()
    draw = partial(draw_progress, pace, console.width)
    with Progress(console, draw, partial(get_check_status, pace)) as progress:
        outcome = work.run(open_runner, list(list_names()), progress.show)
    print_ignored(work)
    if outcome.unwritten:
        print_error(outcome.unwritten)
    print_unsaved(outcome.failures)
    return print_campaign(outcome, folder.location)


# --- what it has come to ----------------------------------------------------------------


def load(location: str) -> Outcome:
    """Returns the campaign in a folder; another process may be running it."""
    folder = open_folder(location)
    work = Campaign(folder, require_terms(folder))
    work.load()
    print_ignored(work)
    return work.outcome


def print_ignored(work: Campaign) -> None:
    for message in work.ignored.values():
        print_error(f"{message}; it does not count")


def print_campaign(outcome: Outcome, location: str, as_json: bool = False) -> int:
    def show() -> None:
        console = PlainConsole()
        print_outcome(console, outcome)
        console.print(describe_state(outcome, location), soft_wrap=True)

    return print_report(outcome, as_json, to_json, show)


@define(
    FOLDER,
    option(
        "-o --output",
        "Folder for a page.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    ),
    *("given", "json", "step", "start", "server", "failures"),
    group=campaign,
)
def report(settings: Settings, location: str, output: Path | None, as_json: bool) -> int:
    """Shows the progress and the failures of a campaign.

    With --output, also makes a page, like `lockstep report`. For the page, each failing
    program runs again on its backend if the backend is given or registered, otherwise
    only on the reference. Exit status: the status of the campaign so far.
    """
    outcome = load(location)
    if output is not None:
        material = Material()
        add_outcome(structs.replace(summarize(outcome), path=location), material)
        with open_pool(settings, 1) as pool:
            text = render_html(make_report(material, Stage(pool, settings)))
        click.echo(str(save_page(output, "report.html", text)), err=as_json)
    return print_campaign(outcome, location, as_json)


@define(
    FOLDER,
    click.argument("sources", nargs=-1, required=True, metavar="SOURCE…"),
    name="merge",
    group=campaign,
)
def merge_command(location: str, sources: Sequence[str]) -> int:
    """Merges the parts of a campaign.

    Adds the shards of each SOURCE to the campaign in FOLDER, which may be new. All parts
    must have the same settings, except --shard. A shard in several parts counts once.
    Exit status: the status of the campaign so far.
    """
    work = merge(open_folder(location), [open_folder(source) for source in sources])
    print_ignored(work)
    return print_campaign(work.outcome, location)
