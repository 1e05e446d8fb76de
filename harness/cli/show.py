"""The commands `lockstep show` and `lockstep report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from lockstep.harness.cli.options import command, print_error, shared
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.reports.pages.gather import gather
from lockstep.harness.reports.pages.html import render_html, save_page
from lockstep.harness.reports.pages.markdown import render_annotations, render_markdown
from lockstep.harness.reports.pages.play import Stage
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import (
    ReportView,
    Saved,
    make_failure,
    make_report,
)
from lockstep.harness.workers.pool import Pool

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


@click.command(epilog=SHOW_EXAMPLES, short_help="Shows a failure, step by step.")
@click.argument("file", type=click.Path(path_type=Path))
@shared("backend")
@click.option(
    "--step",
    "number",
    type=click.IntRange(0),
    metavar="N",
    help="Step to draw; default: the one that diverges.",
)
@shared("step", "failures")
@command
def show(
    file: Path,
    backend: str | None,
    number: int | None,
    step_seconds: float,
    failures: Path,
) -> int:
    """Shows a failure: its steps in words, and the one that diverges as a picture.

    The program runs again, on the backend given or on the registered one that FILE
    names; without either, only the reference's side is shown. Exit status 0 if the file
    could be shown.
    """
    saved = get_single_saved(file)
    if number is not None and number >= len(saved.program.ops):
        last = len(saved.program.ops) - 1
        raise UsageError(f"--step {number}: the last step of {file} is {last}")
    console = Console(highlight=False)
    painter = Painter(console)
    with Pool(1, failures / RUNNING, step_seconds) as pool:
        stage = Stage(pool, [backend] if backend else [])
        view = make_failure(1, saved, stage, get_bounds(console.width))
    painter.show(view, number)
    return 0


def get_single_saved(file: Path) -> Saved:
    material = gather([file])
    if material.broken:
        raise UsageError(material.broken[0])
    if len(material.saved) != 1:
        raise UsageError(f"{file}: holds {len(material.saved)} programs; give one")
    return material.saved[0]


@click.command(epilog=REPORT_EXAMPLES, short_help="Makes a page of what a check found.")
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
@shared("backends", "step", "failures")
@command
def report(
    paths: Sequence[Path],
    folder: Path | None,
    form: str,
    backends: Sequence[str],
    step_seconds: float,
    failures: Path,
) -> int:
    """Makes a page of what a check found: one file, which needs no network.

    PATH is the folder for failures of a check, its outcome.json, or a program file;
    default: `failures`. For a page, each program runs again, on a backend given or on the
    registered one that its file names; without either, only the reference's side is
    shown. Exit status: 0 if the report was made, 2 if some file could not be read.
    """
    if form == "html" and folder is None:
        raise UsageError("a page needs a folder; choose one with -o DIR")
    if not paths and not failures.exists():
        raise UsageError(
            f"{failures}: there is no such folder; `lockstep check` makes it"
        )
    material = gather(list(paths) or [failures])
    for line in material.broken:
        print_error(UsageError(line))
    if form in TEXTS:
        render, name = TEXTS[form]
        text = render(make_report(material, None))
    else:
        with Pool(1, failures / RUNNING, step_seconds) as pool:
            text = render_html(make_report(material, Stage(pool, backends)))
        name = "report.html"
    if folder is None:
        click.echo(text, nl=False)
    else:
        click.echo(str(save_page(folder, name, text)))
    return 2 if material.broken else 0
