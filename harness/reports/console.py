"""What the terminal shows: the matrix, failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lockstep.harness.core.printable import make_printable, say_needed
from lockstep.harness.jobs.failures import Failure, get_replay_line
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.programs.explain import tell

DETAILS = ("programs", "steps", "mean", "cells", "margin", "known")
WIDE = 76
"""Columns of a terminal that has room for all of them."""


def shorten_number(number: int) -> str:
    return f"{number / 1000:.0f}k" if number >= 10_000 else str(number)


def get_cell(pair: Pair) -> Text:
    """What a pair has come to: one cell of the matrix."""
    programs, _ = pair.get_progress()
    if pair.is_diverging:
        count = len(pair.failures) + len(pair.outdated)
        return Text(f"✗ {count} diverge" if count > 1 else "✗ diverges", "bold red")
    if pair.missing:
        return Text("! unfinished", "bold yellow")
    if pair.is_error:
        return Text("! ERROR", "bold yellow")
    if programs < pair.wanted:
        return Text(f"… {programs}", "dim")
    return Text(f"✓ {programs}", "green")


def make_matrices(outcome: Outcome) -> Group:
    """One for each contract: all kinds side by side would be too wide."""
    contracts = dict.fromkeys(pair.contract for pair in outcome.pairs)
    return Group(*(make_matrix(outcome, contract) for contract in contracts))


def make_matrix(outcome: Outcome, contract: str) -> Table:
    """Backends × kinds of one contract: programs that agree."""
    pairs = [pair for pair in outcome.pairs if pair.contract == contract]
    kinds = list(dict.fromkeys(pair.kind for pair in pairs))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(contract, overflow="fold", min_width=10)
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True)
    for backend in dict.fromkeys(pair.backend for pair in pairs):
        own = {pair.kind: pair for pair in pairs if pair.backend == backend}
        cells = [
            get_cell(own[kind]) if kind in own else Text("–", "dim") for kind in kinds
        ]
        table.add_row(backend, *cells)
    return table


def make_details(outcome: Outcome, width: int = WIDE) -> Table:
    """One row for each pair: how much was run, and how far it reached. width: of the
    terminal; on a narrow one only the two columns that matter most."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("what was run", overflow="fold")
    names = DETAILS if width >= WIDE else ("programs", "cells")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for pair in outcome.pairs:
        details = list_details(pair)
        table.add_row(pair.name, *(details[name] for name in names))
    return table


def list_details(pair: Pair) -> dict[str, str]:
    """What is said of a pair, by the name of its column."""
    return {
        "programs": str(pair.programs),
        "steps": shorten_number(pair.steps),
        "mean": f"{pair.steps / pair.programs:.1f}" if pair.programs else "–",
        "cells": f"{pair.count_reached()}/{len(pair.cells)}",
        "margin": f"{pair.margin:.2f}" if pair.margin else "–",
        "known": str(pair.known) if pair.known else "–",
    }


def list_notes(outcome: Outcome) -> Iterator[Text]:
    """What the tables leave open, a line each."""
    yield from list_empty_cells(outcome)
    yield from list_unfinished(outcome)
    yield from list_errors(outcome)


def list_errors(outcome: Outcome) -> Iterator[Text]:
    """What did not run, or not as the ledger says."""
    for pair in outcome.pairs:
        for error in pair.errors:
            yield Text(f"{pair.name}: ERROR: {error}", "bold yellow")
        for entry in pair.outdated:
            yield Text(f"{pair.name}: the ledger is outdated: {entry}", "bold red")
    for backend, why in outcome.dead.items():
        yield Text(f"{backend}: ERROR: {why}", "bold yellow")
    for backend, why in outcome.unavailable.items():
        yield Text(f"{backend}: not checked: {why}", "yellow")


def list_unfinished(outcome: Outcome) -> Iterator[Text]:
    """What a backend that was asked for by name still lacks: the parts of it that are not
    written, and the operations that it does not declare."""
    for pair in outcome.pairs:
        for part, operation in pair.missing.items():
            words = say_needed(part, operation)
            yield Text(f"{pair.name}: {words}", "bold yellow")
        undeclared = pair.list_undeclared()
        if undeclared and pair.backend in outcome.settings.backends:
            names = ", ".join(undeclared)
            yield Text(f"{pair.name}: not declared, not checked: {names}", "yellow")


MOST_LISTED = 3
"""Pairs whose empty cells are listed, states of a pair, and operations of a state."""


def list_empty_cells(outcome: Outcome) -> Iterator[Text]:
    """What generation never reached, in a few lines."""
    pairs = [
        pair
        for pair in outcome.pairs
        if pair.programs and not pair.missing and pair.count_reached() < len(pair.cells)
    ]
    for pair in pairs[:MOST_LISTED]:
        empty = pair.group_empty_cells()
        groups = [f"{state} × {shorten_list(names)}" for state, names in empty.items()]
        missed = len(pair.cells) - pair.count_reached()
        text = f"{pair.name}: {missed} of {len(pair.cells)} cells never reached: "
        yield Text(text + shorten_list(groups, "; "), "yellow")
    if len(pairs) > MOST_LISTED:
        others = len(pairs) - MOST_LISTED
        yield Text(f"{others} other pairs have such cells; --json lists all", "yellow")


def shorten_list(items: Sequence[str], separator: str = ", ") -> str:
    more = len(items) - MOST_LISTED
    listed = [*items[:MOST_LISTED], *([f"{more} more"] if more > 0 else [])]
    return separator.join(listed)


def print_failure(console: Console, failure: Failure) -> None:
    """A failure in words, and the line that reproduces it."""
    console.print(f"\n[bold red]✗ {escape(failure.backend)}[/] {failure.signature}")
    for line in tell(failure.program, failure.divergence):
        console.print(Text(indent(line, console.width)), soft_wrap=True)
    if failure.why_likely:
        console.print(Text(indent(failure.why_likely, console.width), "yellow"))
    line = get_replay_line(failure.path, failure.backend)
    console.print(Text(f"  {line}", "bold"), soft_wrap=True)


def indent(line: str, width: int) -> str:
    """The line of a report, its further lines further to the right."""
    wrapped = TextWrapper(
        width,
        initial_indent="  ",
        subsequent_indent=" " * 6,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.fill(line)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """All that a check has found."""
    for failure in outcome.failures:
        print_failure(console, failure)
    if outcome.pairs:
        console.print(make_details(outcome, console.width))
        console.print(make_matrices(outcome))
    for note in list_notes(outcome):
        console.print(note)
    console.print(get_summary(outcome))


def get_summary(outcome: Outcome) -> Text:
    programs = sum(pair.get_progress()[0] for pair in outcome.pairs)
    steps = sum(pair.get_progress()[1] for pair in outcome.pairs)
    known = sum(pair.known for pair in outcome.pairs)
    text = f"{programs:,} programs, {steps:,} steps in {outcome.seconds:.0f} s"
    text += f", seed {outcome.settings.seed}"
    if known:
        text += f", {known} known divergences still there"
    found = len(outcome.failures)
    failures = f"{found} failure" + ("" if found == 1 else "s")
    agree = not found and outcome.get_exit_status() in (0, 130)
    verdict = "all agree" if agree else failures
    if not found and any(pair.missing for pair in outcome.pairs):
        verdict = "unfinished"
    if not programs:
        verdict = "nothing was checked"
    if outcome.is_cut:
        verdict += " (stopped before the end)"
    style = "green" if outcome.get_exit_status() == 0 else "bold red"
    return Text(f"{verdict}: {text}", style)


def print_replayed(console: Console, what: str, status: str, words: str = "") -> None:
    style = {"FIXED": "green", "FAILED": "bold red", "ERROR": "bold yellow"}[status]
    said = make_printable(f" {what}: {words}" if words else f" {what}")
    line = Text.assemble((status, style), said)
    console.print(line, soft_wrap=True)
