"""Code that the benchmarks share: the option --json, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table


def check_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuses a path in a missing folder, before the measurement begins."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.absolute().parent}")
    return path


JSON = click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=check_folder,
    help="Write the numbers there.",
)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Prints a table with the first column aligned left, and the other columns right."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
