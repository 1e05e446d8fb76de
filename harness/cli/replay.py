"""The commands on saved programs: replay, snippet, show and report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from lockstep.harness.cli.frame import print_error, printing
from lockstep.harness.cli.options import command, several, shared
from lockstep.harness.cli.results import print_result
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import open_pool
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.jobs.replay import (
    Replayed,
    get_own_backend,
    get_replay_status,
    get_single,
    replay_paths,
    replayed_to_json,
)
from lockstep.harness.programs.files import load_saved
from lockstep.harness.reports.console import PlainConsole
from lockstep.harness.reports.pages.gather import (
    Stage,
    gather,
    make_failure,
    make_report,
)
from lockstep.harness.reports.pages.html import render_html, save_page
from lockstep.harness.reports.pages.markdown import render_annotations, render_markdown
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import (
    ReportView,
)
from lockstep.harness.workers.messages import Stopped, WriteSnippet

REPLAY_EXAMPLES = """\b
Examples:
  lockstep replay failures                          all that were saved
  lockstep replay artifact.zip                      those that a CI machine saved
  lockstep replay FILE --backend torch-cpu          on another backend
"""


@click.command(epilog=REPLAY_EXAMPLES)
@several
@shared("given", "unsupported", "step", "start", "strict", "failures", "json")
@command
def replay(settings: Settings, paths: Sequence[Path], as_json: bool) -> int:
    """Runs saved programs again: FIXED, AGREES, FAILED, FLAKY or ERROR for each.

    AGREES is a program that has never failed, such as a recording.

    PATH is a program file, a folder or a zip of them, a file in a zip, written
    artifact.zip!folder/name.json, or a line of a .jsonl file, written found.jsonl:3.
    Without --backend, each runs on the backend that its file names, if that is a
    registered one or one of the project's settings. Of a program that no longer fails,
    the line says what differs from the machine that found it.
    """
    console = PlainConsole(stderr=as_json)
    results: list[Replayed] = []
    with open_pool(settings, 1) as pool:
        for result, _ in replay_paths(pool, paths, settings):
            results.append(result)
            print_result(console, result)
    if as_json:
        with printing(lambda: get_replay_status(results)):
            click.echo(json.dumps(replayed_to_json(results), indent=1))
    return get_replay_status(results)


# --- snippet ----------------------------------------------------------------------------


SNIPPET_EXAMPLES = """\b
Examples:
  lockstep snippet failures/SIGNATURE/FILE.json > bug.py
  lockstep snippet FILE --backend my_cache:make > bug.py
  lockstep snippet FILE --backend exec:./driver > bug.sh
  lockstep snippet failures -o scripts          one for each that was saved
"""


@click.command(epilog=SNIPPET_EXAMPLES)
@several
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the scripts of several programs.",
)
@shared("backend", "start", "failures")
@command
def snippet(
    settings: Settings, paths: Sequence[Path], backend: str | None, folder: Path | None
) -> int:
    """Prints a failure as a script, which shows it without the harness.

    PATH is what `lockstep replay` takes. For a backend in Python the script calls its
    methods; for a released cache it has a copy of our adapter and needs the framework
    alone. It ends with status 1 as long as the failure is there, and with 0 when it is
    gone. For a driver it is a script for sh with the lines that the driver is sent, and
    what it should answer.
    """
    if folder is None:
        programs = [get_single(paths, "a snippet without -o DIR")]
    else:
        programs = load_saved(paths)
    refused = 0
    with open_pool(settings, 1) as pool:
        for number, (path, program) in enumerate(programs, 1):
            try:
                name = backend or get_own_backend(path, program, settings)
            except UsageError as error:
                print_error(error)
                refused += 1
                continue
            event = pool.call(WriteSnippet(name, program.to_json()))
            if isinstance(event, Stopped):
                print_error(f"{path}: no snippet: {event.describe()}")
                refused += 1
            elif folder is None:
                click.echo(event.text, nl=False)
            else:
                click.echo(str(save_script(folder, number, path, event.text)))
    return 2 if refused else 0


def save_script(folder: Path, number: int, path: Path, text: str) -> Path:
    """Writes the script of a program, under a name of its own in the folder.

    Raises:
        UsageError: it cannot be written, or a file of this name is there.
    """
    stem = re.sub(r"[^\w-]+", "-", path.name.partition(".json")[0])
    ending = "sh" if text.startswith("#!") else "py"
    file = folder / f"{number}-{stem}.{ending}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"{file}: is there already; choose another folder") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    return file


# --- show and report --------------------------------------------------------------------


SHOW_EXAMPLES = """\b
Examples:
  lockstep show failures/SIGNATURE/FILE.json
  lockstep show FILE --backend mycache:make     on a backend of your own
  lockstep show FILE --step 2                   another step as a picture
"""

REPORT_EXAMPLES = """\b
Examples:
  lockstep report -o page                          the folder `failures` as a page
  lockstep report runs/*/failures -o page          several checks on one page
  lockstep report --backend mycache:make -o page   a backend of your own
  lockstep report --format markdown >> "$GITHUB_STEP_SUMMARY"    a summary of a run
  lockstep report --format github                  errors on the page of a run
"""

TEXTS: Mapping[str, tuple[Callable[[ReportView], str], str]] = {
    "markdown": (render_markdown, "report.md"),
    "github": (render_annotations, "annotations.txt"),
}
"""Formats of text, for which nothing runs again, with the file that `--output` writes."""


@click.command(epilog=SHOW_EXAMPLES)
@several
@shared("backend")
@click.option(
    "--step",
    "number",
    type=click.IntRange(0),
    metavar="N",
    help="Step to draw; default: the one that diverges.",
)
@shared("step", "start", "failures")
@command
def show(
    settings: Settings, paths: Sequence[Path], backend: str | None, number: int | None
) -> int:
    """Shows failures: their steps in words, and the one that diverges as a picture.

    PATH is what `lockstep replay` takes. A program runs again, on the backend given or on
    the registered one that its file names; without either, only the reference's side is
    shown. Exit status: 0 if all could be shown, 2 if some file could not be read.
    """
    material = gather(paths)
    if number is not None:
        file, program = get_single(paths, "--step")
        if number >= len(program.ops):
            last = len(program.ops) - 1
            raise UsageError(f"--step {number}: the last step of {file} is {last}")
    for line in material.broken:
        print_error(UsageError(line))
    console = PlainConsole()
    painter = Painter(console)
    with open_pool(settings, 1) as pool:
        given = replace(settings, backends=[backend] if backend else ())
        stage = Stage(pool, given)
        for place, saved in enumerate(material.saved, 1):
            view = make_failure(place, saved, stage, get_bounds(console.width))
            painter.show(view, number)
    return 2 if material.broken else 0


@click.command(epilog=REPORT_EXAMPLES)
@click.argument("paths", nargs=-1, metavar="[PATH…]", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for report.html, report.md or annotations.txt.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", *TEXTS]),
    default="html",
    show_default=True,
)
@shared("given", "step", "start", "failures")
@command
def report(
    settings: Settings, paths: Sequence[Path], folder: Path | None, form: str
) -> int:
    """Makes a page of what a check found: one file, which needs no network.

    PATH is the folder for failures of a check, its outcome.json, or a program file;
    default: `failures`. For a page, each program runs again, on a backend given or on the
    registered one that its file names; without either, only the reference's side is
    shown. Exit status: 0 if the report was made, 2 if some file could not be read.
    """
    if form == "html" and folder is None:
        raise UsageError("a page needs a folder; choose one with -o DIR")
    failures = settings.failures
    if not paths and not failures.exists():
        raise UsageError(
            f"{failures}: there is no such folder; `lockstep check` makes it"
        )
    material = gather(paths or [failures])
    for line in material.broken:
        print_error(UsageError(line))
    if form in TEXTS:
        render, name = TEXTS[form]
        text = render(make_report(material, None))
    else:
        with open_pool(settings, 1) as pool:
            stage = Stage(pool, settings)
            text = render_html(make_report(material, stage))
        name = "report.html"
    if folder is None:
        click.echo(text, nl=False)
    else:
        click.echo(str(save_page(folder, name, text)))
    return 2 if material.broken else 0
