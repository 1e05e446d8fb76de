"""Defines the commands that show failures: `show` and `report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from lockstep.harness.cli.frame import print_error
from lockstep.harness.cli.options import define, option
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.replay import get_single
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.reports.console import PlainConsole
from lockstep.harness.reports.pages.gather import (
    Material,
    Stage,
    gather,
    make_failure,
    make_report,
)
from lockstep.harness.reports.pages.html import render_html, save_page
from lockstep.harness.reports.pages.markdown import render_markdown
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import ReportView

FORMS: Mapping[str, tuple[Callable[[ReportView], str], str]] = {
    "html": (render_html, "report.html"),
    "markdown": (render_markdown, "report.md"),
}
"""Format → its renderer, and its file in the folder of `--output`."""


def load_material(paths: Sequence[Path]) -> Material:
    """Gathers the outcomes and failures at the paths, and prints the files that cannot
    be read."""
    material = gather(paths)
    for line in material.broken:
        print_error(line)
    return material


@define(
    *("paths", "backend"),
    option(
        "--step number",
        "Step to draw; default: the step that diverges.",
        type=click.IntRange(0),
        metavar="N",
    ),
    *("step", "start", "server", "failures"),
)
def show(
    settings: Settings, paths: Sequence[Path], backend: str | None, number: int | None
) -> int:
    """Shows failures: their steps, and a picture of the step that diverges.

    PATH is a path as for `lockstep replay`. Each program runs again, on --backend or on
    the registered backend in its file; without either, only the reference is shown. Exit
    status: 0 all were shown; 2 a file could not be read.

    Examples:
      lockstep show failures/SIGNATURE/FILE.json
      lockstep show FILE --backend mycache:make     on a backend of your own
      lockstep show FILE --step 2                   draw another step
    """
    material = load_material(paths)
    if number is not None:
        file, program = get_single(paths, "--step")
        if number >= len(program.ops):
            last = len(program.ops) - 1
            raise UsageError(
                f"--step must be at most {last}, the last step of {file}, not {number}"
            )
    console = PlainConsole()
    painter = Painter(console)
    with open_pool(settings, 1) as pool:
        stage = Stage(pool, settings, backend)
        for saved in material.saved:
            view = make_failure(1, saved, stage, get_bounds(console.width))
            painter.show(view, number)
    return 2 if material.broken else 0


@define(
    click.argument("paths", nargs=-1, metavar="[PATH…]", type=click.Path(path_type=Path)),
    option(
        "-o --output folder",
        "Folder for report.html or report.md.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    ),
    option(
        "--format form",
        "Form of the report.",
        type=click.Choice(list(FORMS)),
        default="html",
        show_default=True,
    ),
    *("given", "step", "start", "server", "failures"),
)
def report(
    settings: Settings, paths: Sequence[Path], folder: Path | None, form: str
) -> int:
    """Makes a page of the results of a check: one file, which needs no network.

    PATH is the folder for failures of a check, its outcome.json, or a program file;
    default: `failures`. For a page, each program runs again on the backend in its file,
    if that is given with --backend or registered, or else only on the reference. Exit
    status: 0 the report was made; 2 a file could not be read.

    Examples:
      lockstep report -o page                          the folder `failures` as a page
      lockstep report runs/*/failures -o page          several checks on one page
      lockstep report --backend mycache:make -o page   a backend of your own
      lockstep report --format markdown >> "$GITHUB_STEP_SUMMARY"    a summary of a run
    """
    if form == "html" and folder is None:
        raise UsageError("a page needs a folder; choose one with -o DIR")
    failures = settings.failures
    if not paths and not failures.exists():
        raise UsageError(f"{failures}: no such folder; `lockstep check` makes it")
    material = load_material(paths or [failures])
    render, name = FORMS[form]
    if form == "html":
        with open_pool(settings, 1) as pool:
            text = render(make_report(material, Stage(pool, settings)))
    else:
        text = render(make_report(material, None))
    if folder is None:
        click.echo(text, nl=False)
    else:
        click.echo(str(save_page(folder, name, text)))
    return 2 if material.broken else 0
