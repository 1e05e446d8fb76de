"""Reports of a search for the release that broke or mended something."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.harness.jobs.bisect.job import Bisection
from lockstep.harness.jobs.bisect.search import AGREES, Change, Verdict
from lockstep.harness.reports.console import STYLES, make_table

FORMAT = "lockstep-bisected/1"

MARKS = {
    "agrees": ("✓ agrees", STYLES["agrees"]),
    "shows": ("✗ shows it", STYLES["diverges"]),
    "other": ("✗ another", STYLES["diverges"]),
    "untestable": ("– skipped", STYLES["missing"]),
}
SORTS = {
    "broke": "broke it",
    "mended": "mended it",
    "changed": "changed how it fails",
}


def get_bisect_status(work: Bisection) -> Text:
    """The release that is tried now, and how many are left."""
    seconds = time.monotonic() - work.started
    if work.trying is None:
        return Text(f"{seconds:.0f} s", "dim")
    tried = len(work.verdicts)
    return Text(
        f"{seconds:.0f} s: trying {work.names[work.trying]}; {tried} of"
        f" {len(work.names)} tried, about {work.count_left()} left",
        "dim",
    )


def print_bisection(console: Console, work: Bisection) -> None:
    """The releases that were tried, and what is known."""
    if work.verdicts:
        console.print(draw_verdicts(work))
    if work.left_out:
        words = f"left out: {work.left_out} releases that {work.backend} is not tested"
        console.print(Text(f"{words} with; --unsupported adds them", "yellow"))
    if work.lacks_packages and work.get_exit_status():
        words = "some releases may need packages that are not here: --deps installs them"
        console.print(Text(words, "yellow"))
    good = work.is_over and work.get_exit_status() == 0
    console.print(Text(format_conclusion(work), "green" if good else "bold yellow"))
    if good and work.change is not None:
        for line in work.source.describe(work.change.after):
            console.print(Text(f"  {line}"), soft_wrap=True)


def draw_verdicts(work: Bisection) -> Table:
    table = make_table("tried", "", "seconds")
    table.add_column("", overflow="fold")
    for number, verdict in sorted(work.verdicts.items()):
        mark, style = MARKS[name_verdict(work, verdict)]
        seconds = f"{verdict.seconds:.1f}"
        name, words = Text(work.names[number]), Text(verdict.words)
        table.add_row(name, Text(mark, style), seconds, words)
    return table


def name_verdict(work: Bisection, verdict: Verdict) -> str:
    """A verdict in a word: "shows" if it is the failure of the file, "other" if not."""
    if verdict.shown is None:
        return "untestable"
    if verdict.shown == AGREES:
        return "agrees"
    return "shows" if work.wanted in (None, verdict.shown) else "other"


def format_conclusion(work: Bisection) -> str:
    """What is known, and no more."""
    counts = f"{len(work.verdicts)} of {len(work.names)} tried in {work.seconds:.0f} s"
    change = work.change
    if change is None:
        words = format_nothing(work)
    elif change.is_exact:
        words = f"{work.names[change.after]} {SORTS[work.sort or 'changed']}: "
        words += format_ends(work, change)
    else:
        words = f"{SORTS[work.sort or 'changed']} between {work.names[change.before]} and"
        words = f"{words} {work.names[change.after]}: {format_ends(work, change)}"
        words += format_between(work, change)
    return f"{words}; {counts}{'' if work.is_over else ' (stopped before the end)'}"


def format_ends(work: Bisection, change: Change) -> str:
    before, after = work.verdicts[change.before], work.verdicts[change.after]
    old = work.names[change.before]
    return f"{old} {format_shown(before)}, {work.names[change.after]}" + (
        f" {format_shown(after)}"
    )


def format_shown(verdict: Verdict) -> str:
    return AGREES if verdict.shown == AGREES else f"shows {verdict.shown}"


def format_between(work: Bisection, change: Change) -> str:
    """The releases in between, of which nothing is known."""
    between = range(change.before + 1, change.after)
    untried = [number for number in between if number not in work.verdicts]
    failed = [number for number in between if number in work.verdicts]
    text = ""
    if failed:
        text += f"; not testable: {', '.join(work.names[number] for number in failed)}"
    return text + (f"; not tried: {len(untried)}" if untried else "")


def format_nothing(work: Bisection) -> str:
    """Why no change can be named."""
    tested = {n: one for n, one in work.verdicts.items() if one.shown is not None}
    skipped = len(work.verdicts) - len(tested)
    more = f", {skipped} could not be tested" if skipped else ""
    so_far = "" if work.is_over else " so far"
    if not tested:
        return f"nothing is known{so_far}: no release could be tested"
    first, last = work.names[min(tested)], work.names[max(tested)]
    shown = format_shown(tested[min(tested)])
    if len(tested) == 1:
        return f"nothing to compare{so_far}: {first} {shown}{more}"
    same = "agree" if shown == AGREES else f"both {shown.replace('shows', 'show', 1)}"
    return f"no change found{so_far}: {first} and {last} {same}{more}"


def bisection_to_json(work: Bisection) -> dict[str, Any]:
    """The same for machines."""
    return {
        "format": FORMAT,
        "backend": work.backend,
        "signature": work.wanted,
        "releases": list(work.names),
        "left_out": work.left_out,
        "tried": [
            {
                "name": work.names[number],
                "verdict": name_verdict(work, verdict),
                "signature": None if verdict.shown == AGREES else verdict.shown,
                "words": verdict.words,
                "seconds": round(verdict.seconds, 2),
            }
            for number, verdict in sorted(work.verdicts.items())
        ],
        "complete": work.is_over,
        "change": change_to_json(work),
        "conclusion": format_conclusion(work),
        "exit_status": work.get_exit_status(),
    }


def change_to_json(work: Bisection) -> dict[str, Any] | None:
    change = work.change
    if change is None:
        return None
    between = range(change.before + 1, change.after)
    return {
        "sort": work.sort,
        "exact": change.is_exact,
        "before": work.names[change.before],
        "after": work.names[change.after],
        "between": [work.names[number] for number in between],
        "details": work.source.describe(change.after) if change.is_exact else [],
    }
