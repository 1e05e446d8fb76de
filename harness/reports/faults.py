"""The output of a search for planted faults on the terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.harness.jobs.faults import (
    Search,
    Searches,
    list_survivors,
    summarize_searches,
)
from lockstep.harness.reports.console import make_table


def get_search_status(searches: Searches) -> Text:
    seconds = time.monotonic() - searches.started
    over = sum(search.is_over for search in searches.all)
    if not searches.all:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    left = seconds * (len(searches.all) - over) / max(1, over)
    return Text(
        f"{seconds:.0f} s: {len(searches.found)} found, {over} of {len(searches.all)}"
        f" searches over, about {left:.0f} s left",
        "dim",
    )


def print_searches(console: Console, searches: Searches) -> None:
    """A table for each backend, what survived, and a summary."""
    for backend in dict.fromkeys(search.backend for search in searches.all):
        own = [search for search in searches.all if search.backend == backend]
        console.print(draw_searches(backend, own))
    for search in list_survivors(searches):
        why = f"ERROR: {search.error}" if search.error else "not found"
        text = f"{search.backend}: {search.planted.id}: {why}: {search.planted.mistake}"
        console.print(Text(text, "bold red"))
    for backend, why in searches.unavailable.items():
        console.print(Text(f"{backend}: not searched: {why}", "yellow"))
    console.print(format_searches(searches))


def draw_searches(backend: str, searches: list[Search]) -> Table:
    table = make_table(backend, "programs", "seconds", "ops", "excess")
    table.add_column("differs in", overflow="fold")
    for search in searches:
        excess = search.excess
        table.add_row(
            search.planted.id,
            str(search.programs) if search.is_found else f"({search.programs})",
            f"{search.seconds:.1f}",
            str(search.operations or "–"),
            "–" if excess is None else f"{excess:+d}" if excess else "0",
            get_what(search),
            style=None if search.is_found or not search.is_over else "bold red",
        )
    return table


def get_what(search: Search) -> str:
    """The operation and what differs, without contract and kind."""
    if search.signature is None:
        return "ERROR" if search.error else "survives" if search.is_over else "…"
    start = f"{search.planted.contract}-{search.planted.kind}-"
    return search.signature.removeprefix(start)


def format_searches(searches: Searches) -> Text:
    counts = summarize_searches(searches)
    text = f"{counts['found']} of {counts['faults']} faults found"
    if counts["found"]:
        text += (
            f": programs {counts['median_programs']:g} (median), at most"
            f" {counts['most_programs']}; seconds {counts['median_seconds']:g}, at most"
            f" {counts['most_seconds']:g}; operations over the shortest known"
            f" {counts['median_excess']:g}, at most {counts['most_excess']}"
        )
    text += f"; {searches.seconds:.0f} s, seed {searches.settings.seed}"
    if searches.is_interrupted:
        text += " (stopped before the end)"
    return Text(text, "green" if searches.get_exit_status() == 0 else "bold red")
