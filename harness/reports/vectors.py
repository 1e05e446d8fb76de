"""The output of making or checking a set of vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.harness.core.errors import make_printable
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.vectors.export import Export
from lockstep.harness.jobs.vectors.verify import Audit
from lockstep.harness.reports.console import make_table, print_failure, print_notes
from lockstep.harness.reports.model import summarize
from lockstep.harness.reports.outcome_file import describe_failure

# --- a set that is made -----------------------------------------------------------------


def get_export_status(work: Export) -> Text:
    """The progress of an export, and its rate."""
    seconds = time.monotonic() - work.started
    drawn = sum(work.drawn.values())
    return Text(
        f"{seconds:.0f} s: {drawn:,} programs drawn, {drawn / max(seconds, 0.01):,.0f}/s,"
        f" {len(work.done)} of {len(work.kinds)} kinds chosen",
        "dim",
    )


def print_export(console: Console, work: Export, folder: Path) -> None:
    """Prints the number of programs of each kind and what they cover."""
    table = make_table(f"{work.size} set", "programs", "drawn", "operations", "cells")
    for name, own in sorted(work.done.items()):
        covered = sum(map(len, own["covered"].values()))
        cells = f"{covered}/{own['reachable']}"
        counts = (own["programs"], own["drawn"], own["operations"], cells)
        table.add_row(name, *map(str, counts))
    console.print(table)
    programs = sum(own["programs"] for own in work.done.values())
    seconds = time.monotonic() - work.started
    console.print(
        f"{folder}: {programs:,} programs, {work.bytes / 1e6:.1f} MB,"
        f" in {seconds:.0f} s; how to read them: {folder / 'README.md'}",
        soft_wrap=True,
    )


# --- a set that is checked --------------------------------------------------------------


def get_audit_status(work: Audit) -> Text:
    seconds = time.monotonic() - work.started
    text = (
        f"{seconds:.0f} s: {work.done} of {work.files} files, {work.count():,} programs"
    )
    return Text(f"{text} as the reference expects", "dim")


def list_problems(work: Audit) -> Iterator[Text]:
    for problem in work.problems:
        words = make_printable(problem.words)
        if problem.differs:
            yield Text(f"✗ {words}", "bold red")
        else:
            yield Text(f"! {words}", "bold yellow")


def format_audit(work: Audit) -> Text:
    """The verdict on a set, in a line."""
    programs = f"{work.folder}: {work.count():,} programs in {work.files} files"
    if not work.problems:
        return Text(f"{programs}, whole, and as the reference expects", "green")
    if work.get_exit_status() == 1:
        text = f"{programs}; the reference here expects something else"
        return Text(text, "bold red")
    return Text(f"{programs}; this is no proper set of vectors", "bold yellow")


def get_run_status(outcome: Outcome) -> Text:
    """The progress of the backends, and the time left."""
    seconds = time.monotonic() - outcome.started
    wanted = sum(pair.wanted for pair in outcome.pairs)
    done = sum(count_done(pair) for pair in outcome.pairs)
    if not done:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    left = seconds * (wanted - done) / done
    text = f"{seconds:.0f} s: {done:,} of {wanted:,} programs,"
    text += f" {len(outcome.failures)} failures, about {left:.0f} s left"
    return Text(text, "dim")


def count_done(pair: Pair) -> int:
    """Programs that are over, those that were left out included."""
    return pair.get_progress()[0] + pair.undeclared.total() + pair.avoided


def count_diverged(pair: Pair) -> int:
    return pair.signatures.total()


def count_agreed(pair: Pair) -> int:
    """Programs that ran to their end, and as they should."""
    return pair.programs - count_diverged(pair) - pair.unfinished


def print_verification(console: Console, outcome: Outcome) -> None:
    """Failures, and for each pair how many programs agree."""
    for failure in outcome.failures:
        print_failure(console, failure)
    console.print(draw_counts(outcome))
    for pair in outcome.pairs:
        for why, programs in pair.undeclared.most_common(1):
            text = f"{pair.name}: {programs} programs: {why}"
            console.print(Text(text, "dim"), soft_wrap=True)
    print_notes(console, summarize(outcome))
    console.print(format_verification(outcome))


def draw_counts(outcome: Outcome) -> Table:
    columns = ("agreed", "diverged", "not declared", "known", "crashed")
    table = make_table("vectors", *columns, is_folded=True)
    for pair in outcome.pairs:
        diverged = count_diverged(pair)
        style = "bold red" if diverged else "bold yellow" if pair.is_error else "green"
        agreed = Text(str(count_agreed(pair)), style)
        rest = (diverged, pair.undeclared.total(), pair.avoided, pair.crashes)
        table.add_row(pair.name, agreed, *(str(number or "–") for number in rest))
    return table


def format_verification(outcome: Outcome) -> Text:
    programs = sum(pair.programs for pair in outcome.pairs)
    diverged = sum(map(count_diverged, outcome.pairs))
    status = outcome.get_exit_status()
    words = "all agree" if status == 0 else f"{diverged} of them diverge"
    if not diverged and any(pair.missing for pair in outcome.pairs):
        words = "unfinished"
    if not programs:
        words = "nothing was run: no backend declares what the set asks for"
    if outcome.is_cut:
        words += " (stopped before the end)"
    text = f"{programs:,} programs in {outcome.seconds:.0f} s: {words}"
    return Text(text, "green" if status == 0 else "bold red")


def verification_to_json(
    audit: Audit, outcome: Outcome | None, status: int
) -> dict[str, Any]:
    """The same for machines."""
    return {
        "format": "lockstep-verification/1",
        "programs": audit.count(),
        "exit_status": status,
        "problems": [problem.words for problem in audit.problems],
        "pairs": [verified_to_json(pair) for pair in (outcome.pairs if outcome else ())],
        "unavailable": outcome.unavailable if outcome else {},
        "dead": outcome.dead if outcome else {},
    }


def verified_to_json(pair: Pair) -> dict[str, Any]:
    return {
        "backend": pair.backend,
        "contract": pair.contract,
        "kind": pair.kind,
        "agreed": count_agreed(pair),
        "diverged": count_diverged(pair),
        "not_declared": dict(pair.undeclared),
        "known": pair.avoided,
        "crashed": pair.crashes,
        "errors": pair.errors,
        "missing": pair.missing,
        "failures": [describe_failure(failure) for failure in pair.failures],
    }
