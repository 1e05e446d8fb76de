"""The command `lockstep campaign`: checks that go on, on one machine or on many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from lockstep.harness.cli.frame import print_error, print_line, printing
from lockstep.harness.cli.options import Seconds, command, require_guided, shared
from lockstep.harness.core.document import show
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, open_folder
from lockstep.harness.jobs.campaign.coordinator import Campaign
from lockstep.harness.jobs.campaign.history import History, write_given
from lockstep.harness.jobs.campaign.local import LocalTeam
from lockstep.harness.jobs.campaign.lock import Holder, describe_unwritable, read_holder
from lockstep.harness.jobs.campaign.merge import merge
from lockstep.harness.jobs.campaign.plan import (
    SLICE,
    Terms,
    compare,
    read_terms,
    require_terms,
    require_version,
    write_terms,
)
from lockstep.harness.jobs.campaign.team import Team
from lockstep.harness.jobs.check import open_pool
from lockstep.harness.jobs.outcome import PROFILES, Outcome, Settings
from lockstep.harness.programs.corpus import Corpora, open_corpus
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.reports.campaign import describe_state, get_campaign_status
from lockstep.harness.reports.console import (
    Pace,
    PlainConsole,
    Progress,
    draw_progress,
    print_outcome,
)
from lockstep.harness.reports.live import serve_page
from lockstep.harness.reports.outcome_file import to_json
from lockstep.harness.reports.pages.gather import Stage, add_outcome
from lockstep.harness.reports.pages.html import render_html, save_page
from lockstep.harness.reports.pages.view import Material, make_report
from lockstep.harness.workers.registry import list_names

EXAMPLES = """\b
Examples:
  lockstep campaign start night --time 28800      eight hours on this machine
  lockstep campaign start night --steps 10000000  ten million steps, on each core
  lockstep campaign resume night                  what is left of it
  lockstep campaign report night -o page          what it has found
"""

START_EXAMPLES = """\b
Examples:
  lockstep campaign start night --backend torch-cpu --time 3600
  lockstep campaign start night --programs 25000 --shard 1/3   a third of it here
  lockstep campaign start s3://bucket/night --time 28800 --ray auto
  lockstep campaign start night --generator guided --corpus last/corpus
"""


@click.group(epilog=EXAMPLES)
def campaign() -> None:
    """Checks that go on until a budget is spent, with their state in a folder.

    FOLDER is a folder, or a URL that fsspec knows, such as s3://bucket/night. A campaign
    can be stopped at any time; `resume` goes on.
    """


folder_argument = click.argument("place", metavar="FOLDER")


# --- it runs ----------------------------------------------------------------------------


def read_part(context: click.Context, option: Any, value: str | None) -> Any:
    """The numbers in "1/3"."""
    if value is None:
        return []
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", value)
    if not found or int(found[1]) > int(found[2]):
        raise click.BadParameter(f"{value} is not I/N, with I from 1 to N")
    return [(int(found[1]), int(found[2]))]


def where(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say where shards run."""
    for add in (
        click.option(
            "--gpu",
            type=click.FloatRange(0.01, 1),
            default=0.25,
            show_default=True,
            metavar="X",
            help="Under Ray, the share of a GPU that a worker asks for.",
        ),
        click.option(
            "--ray",
            "address",
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Run shards on a Ray cluster: host:port, or auto for the one that this"
            " machine belongs to; without ADDRESS, on this machine.",
        ),
        *map(shared, ("jobs",)),
    ):
        function = add(function)
    return function


@campaign.command(epilog=START_EXAMPLES, short_help="Begins a campaign, and runs it.")
@folder_argument
@shared("backends", "kinds")
@click.option(
    "--programs",
    type=click.IntRange(1),
    metavar="N",
    help=f"Programs for each backend and kind; default: {PROFILES['nightly'].programs:,}",
)
@click.option("--time", "seconds", type=Seconds(1), metavar="S", help="Or S seconds.")
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Or N steps, of all together."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--generator",
    type=click.Choice(list(GENERATORS)),
    default="plain",
    show_default=True,
)
@click.option(
    "--corpus",
    "given",
    metavar="DIR",
    help="Start shards from the programs in this folder or URL; with --generator guided."
    " FOLDER/corpus gets the shortest programs of these and of all shards: the next"
    " campaign can start from it.",
)
@click.option(
    "--share-corpus",
    is_flag=True,
    help="Start later shards from what earlier ones have kept, too. What they run then"
    " depends on which ones were over first: the same seed draws other programs each"
    " time, and --programs and --shard do not come to the same on other machines.",
)
@click.option(
    "--slice",
    type=click.IntRange(1, 100_000),
    default=SLICE,
    show_default=True,
    metavar="N",
    help="Programs in a shard.",
)
@click.option(
    "--shard",
    "parts",
    callback=read_part,
    metavar="I/N",
    help="Run the I-th of N parts; `merge` puts them together.",
)
@where
@shared("step", "start", "strict")
@command
def start(
    place: str,
    backends: Sequence[str],
    kinds: Sequence[str],
    programs: int | None,
    seconds: float | None,
    steps: int | None,
    given: str | None,
    jobs: int,
    address: str | None,
    gpu: float,
    **options: Any,
) -> int:
    """Begins a campaign in FOLDER and runs it until its budget is spent.

    The budget is a number of programs for each backend and kind, or of seconds, or of
    steps. With seconds or steps, pairs that find new states or failures get more of them.
    Exit status: 0 all agree; 1 a backend diverges, crashes or hangs; 2 something was not
    run.
    """
    budgets = [one for one in (programs, seconds, steps) if one is not None]
    if len(budgets) > 1:
        raise UsageError("give one of --programs, --time and --steps")
    if options["share_corpus"]:
        require_guided("--share-corpus", options["generator"])
    corpus = None if given is None else read_corpus(given, options["generator"])
    if not budgets:
        programs = PROFILES["nightly"].programs
    terms = Terms(
        backends=list(dict.fromkeys(backends)),
        kinds=list(dict.fromkeys(kinds)),
        programs=programs,
        seconds=seconds,
        steps=steps,
        corpus=None if corpus is None else corpus.compute_digest(),
        **options,
    )
    folder = open_folder(place)
    begin(folder, terms, corpus)
    return run(folder, terms, jobs, address, gpu)


def read_corpus(place: str, generator: str) -> Corpora:
    """The corpus in a folder that must be there, but may be empty."""
    require_guided("--corpus", generator)
    corpus = open_corpus(place)
    if not corpus.folder.exists():
        raise UsageError(f"--corpus: {place}: there is no such folder")
    return corpus


def begin(folder: Folder, terms: Terms, corpus: Corpora | None) -> None:
    """Writes the settings of a campaign, unless the folder has the same already, and the
    corpus that it is given."""
    before = read_terms(folder)
    if before is None:
        if folder.list():
            raise UsageError(f"{folder.place}: has files, and no campaign")
        try:
            write_terms(folder, terms)
        except OSError as error:
            raise UsageError(describe_unwritable(folder, error)) from None
        before = require_terms(folder)
    why = compare(before, terms)
    if why is None and before.parts != terms.parts:
        why = f"its shard is {show(before.parts)}, not {show(terms.parts)}"
    if why is not None:
        raise UsageError(
            f"{folder.place}: holds another campaign: {why}; choose another folder, or go"
            f" on with `lockstep campaign resume`"
        )
    if corpus is not None:
        try:
            write_given(folder, corpus)
        except OSError as error:
            raise UsageError(describe_unwritable(folder, error)) from None


@campaign.command(short_help="Goes on with a campaign that was stopped.")
@folder_argument
@where
@command
def resume(place: str, jobs: int, address: str | None, gpu: float) -> int:
    """Goes on with the campaign in FOLDER, with what is left of its budget.

    Shards that are done do not run again. The machines may be others than before.
    """
    folder = open_folder(place)
    terms = require_terms(folder)
    require_version(folder, terms)
    return run(folder, terms, jobs, address, gpu)


def run(folder: Folder, terms: Terms, jobs: int, address: str | None, gpu: float) -> int:
    console = PlainConsole()
    work = Campaign(folder, terms, list(list_names()), jobs)
    draw = partial(draw_progress, Pace(), console.width)
    with Progress(console, draw, get_campaign_status) as progress:
        work.watch = progress.show
        outcome = work.run_with(lambda: open_team(work.settings, address, gpu))
    for words in work.damaged.values():
        print_error(f"{words}; it was run again")
    if outcome.unwritten:
        print_error(outcome.unwritten)
    for failure in outcome.failures:
        if failure.unsaved:
            print_line(json.dumps(failure.to_json()))
    with printing(outcome.get_exit_status):
        print_campaign(outcome, folder.place)
    return outcome.get_exit_status()


def open_team(settings: Settings, address: str | None, gpu: float) -> Team:
    if address is None:
        return LocalTeam(settings)
    from lockstep.harness.jobs.campaign.cluster import RayTeam

    return RayTeam(settings, address, gpu)


# --- what it has come to ----------------------------------------------------------------


def load(place: str) -> Outcome:
    """A campaign as its folder has it; it may be running elsewhere."""
    folder = open_folder(place)
    history = History(folder, require_terms(folder), [])
    outcome = history.load()
    for words in history.damaged.values():
        print_error(f"{words}; `resume` runs it again")
    return outcome


@campaign.command(short_help="Says how far a campaign is.")
@folder_argument
@shared("json")
@command
def status(place: str, as_json: bool) -> int:
    """Says how far the campaign in FOLDER is, and what it has found.

    Exit status: that of the campaign so far.
    """
    outcome = load(place)
    with printing(outcome.get_exit_status):
        if as_json:
            click.echo(json.dumps(to_json(outcome), indent=1))
        else:
            print_campaign(outcome, place, read_holder(open_folder(place)))
    return outcome.get_exit_status()


def print_campaign(outcome: Outcome, place: str, holder: Holder | None = None) -> None:
    console = PlainConsole()
    print_outcome(console, outcome)
    console.print(describe_state(outcome, place, holder), soft_wrap=True)


@campaign.command(short_help="Makes a page of what a campaign has found.")
@folder_argument
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the page.",
)
@shared("given", "step", "start", "failures")
@command
def report(settings: Settings, place: str, output: Path) -> int:
    """Makes the page that `lockstep report` makes, of the campaign in FOLDER.

    Each failing program runs again, on a backend given or on the registered one that its
    file names; without either, only the reference's side is shown. Exit status: 0 if the
    page was made, 2 if not.
    """
    material = gather_outcome(load(place), place)
    with open_pool(settings, 1) as pool:
        text = render_html(make_report(material, Stage(pool, settings)))
    click.echo(str(save_page(output, "report.html", text)))
    return 0


@campaign.command(short_help="Shows a campaign in the browser while it runs.")
@folder_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port on this machine; 0 for any that is free.",
)
@command
def serve(place: str, port: int) -> int:
    """Shows the campaign in FOLDER as a page that follows it, until Ctrl-C.

    Only this machine can open the page, and nothing can be changed there.
    """
    load(place)  # so that what is wrong with the folder is said here
    serve_page(port, lambda: make_live_page(place), click.echo)
    return 0


def make_live_page(place: str) -> str:
    folder = open_folder(place)
    outcome = History(folder, require_terms(folder), []).load()
    return render_html(make_report(gather_outcome(outcome, place), None))


def gather_outcome(outcome: Outcome, place: str) -> Material:
    """The material of a page; what the folder says is read as strictly as a file."""
    material = Material()
    add_outcome(json.loads(json.dumps(to_json(outcome))), place, material)
    return material


@campaign.command(name="merge", short_help="Puts the parts of a campaign together.")
@folder_argument
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@command
def merge_command(place: str, sources: Sequence[str]) -> int:
    """Adds the shards of each SOURCE to the campaign in FOLDER, which may be new.

    All must have the same settings, but for --shard. A shard that several have counts
    once. Exit status: that of the campaign so far.
    """
    history = merge(open_folder(place), [open_folder(source) for source in sources])
    for words in history.damaged.values():
        print_error(f"{words}; `resume` runs it again")
    with printing(history.outcome.get_exit_status):
        print_campaign(history.outcome, place)
    return history.outcome.get_exit_status()
