"""Reports of the other jobs on the terminal and as JSON: exploration, faults, vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.harness.core.errors import make_printable
from lockstep.harness.jobs.explore import Exploration, Survey
from lockstep.harness.jobs.faults import (
    Search,
    Searches,
    list_survivors,
    summarize_searches,
)
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.vectors.export import Audit, Export
from lockstep.harness.programs.words import format_field
from lockstep.harness.reports.console import (
    STYLES,
    make_table,
    print_failures,
    print_notes,
)
from lockstep.harness.reports.model import get_fields, summarize, summarize_pair
from lockstep.harness.reports.outcome_file import describe_failure

# --- an exploration ---------------------------------------------------------------------


def get_exploration_status(exploration: Exploration) -> Text:
    """The progress of an exploration, its rate, and the time left."""
    outcome, surveys = exploration.outcome, exploration.surveys
    seconds = time.monotonic() - outcome.started
    covered = sum(survey.covered for survey in surveys)
    fresh = covered - sum(survey.resumed for survey in surveys)
    if not covered:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    done = sum(survey.done for survey in surveys)
    total = sum(len(survey.parts) for survey in surveys)
    text = (
        f"{seconds:.0f} s: {covered:,} programs, {fresh / seconds:,.0f}/s, {done:,} of"
        f" {total:,} parts, {len(outcome.failures)} failures"
    )
    if fresh and done:
        remaining = sum(map(estimate_remaining, surveys)) * seconds / fresh
        text += f", about {remaining:.0f} s left"
    return Text(text, "dim")


def estimate_remaining(survey: Survey) -> float:
    """Estimates the programs that are left, if all parts have one size."""
    if not survey.done:
        return 0.0
    return survey.pair.covered / survey.done * (len(survey.parts) - survey.done)


def print_exploration(console: Console, exploration: Exploration) -> None:
    """Prints failures, the table of what was covered, notes, and the verdict."""
    print_failures(console, exploration.outcome)
    if exploration.surveys:
        console.print(draw_surveys(exploration))
    print_notes(console, summarize(exploration.outcome), "explored")
    for pair in exploration.outcome.pairs:
        if pair.avoided:
            note = f"{pair.avoided:,} programs that end with a known divergence"
            note = f"{pair.name}: skipped {note}, and all that continue from there"
            console.print(Text(note, "yellow"))
    if any(survey.symmetries for survey in exploration.surveys):
        names = "names (of sequences, users, tokens)"
        console.print(Text(f"of programs that differ only in {names}, one ran", "dim"))
    console.print(format_exploration(exploration))


def draw_surveys(exploration: Exploration) -> Table:
    table = make_table(f"{exploration.size} domain", "ops", "programs")
    table.add_column("config", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    for survey in exploration.surveys:
        cells = survey.pair.name, str(len(survey.moves)), f"{survey.covered:,}"
        config = Text(format_config(survey.config))
        table.add_row(*cells, config, get_verdict(survey))
    return table


def get_verdict(survey: Survey) -> Text:
    pair = summarize_pair(survey.pair)
    diverging, crashes = sum(survey.pair.signatures.values()), survey.pair.crashes
    if diverging or crashes or pair.verdict == "diverges":
        only_crashes = crashes and not diverging
        count = f"{crashes} crash" if only_crashes else f"{diverging:,} diverge"
        return Text(f"✗ {count}", STYLES["diverges"])
    if pair.verdict in ("unfinished", "error"):
        return Text(pair.cell, STYLES[pair.verdict])
    if not survey.is_complete:
        return Text(f"… {survey.done} of {len(survey.parts)}", "yellow")
    return Text("✓ agree", STYLES["agrees"])


def format_exploration(exploration: Exploration) -> Text:
    """States exactly what was covered."""
    outcome, surveys = exploration.outcome, exploration.surveys
    if not surveys:
        return Text("nothing was explored", "bold red")
    is_complete = all(survey.is_complete for survey in surveys)
    covered, resumed = (
        sum(getattr(survey, name) for survey in surveys)
        for name in ("covered", "resumed")
    )
    crashes, unfinished = (
        sum(getattr(survey.pair, name) for survey in surveys)
        for name in ("crashes", "unfinished")
    )
    diverging = sum(sum(survey.pair.signatures.values()) for survey in surveys)
    verdict = f"{diverging:,} diverge" if diverging or crashes else "none diverges"
    if crashes:
        verdict += f", {crashes} crash or hang"
    if unfinished:
        verdict += f", {unfinished:,} need what is not written yet"
    count = f"{exploration.depth} operation" + "s" * (exploration.depth > 1)
    text = (
        f"{'every program' if is_complete else 'not every program'} of up to {count} over"
        f" {'this domain' if len(surveys) == 1 else 'these domains'}: {covered:,},"
        f" {verdict} ({outcome.seconds:.0f} s)"
    )
    if resumed:
        text += f"; {resumed:,} of them in an earlier run"
    if outcome.is_cut:
        text += "; stopped before the end: --resume goes on from here"
    elif not is_complete:
        text += "; the rest comes behind a crash or an error"
    good = outcome.get_exit_status() == 0
    return Text(text, "bold red" if not good else "green" if is_complete else "yellow")


def format_config(config: Mapping[str, Any]) -> str:
    """Formats the fields of a config for people."""
    fields = [
        format_field(name, value) for name, value in config.items() if name != "kind"
    ]
    return ", ".join(fields) or "the plainest config"


def explore_to_json(exploration: Exploration) -> dict[str, Any]:
    """The same, for machines."""
    outcome = exploration.outcome
    return {
        "format": "lockstep-explored/1",
        "size": exploration.size,
        "depth": exploration.depth,
        "seconds": round(outcome.seconds, 2),
        "complete": bool(exploration.surveys)
        and all(survey.is_complete for survey in exploration.surveys),
        "exit_status": outcome.get_exit_status(),
        **get_fields(outcome, "versions", "unavailable", "dead"),
        "errors": {pair.name: pair.errors for pair in outcome.pairs if pair.errors},
        "pairs": [survey_to_json(survey) for survey in exploration.surveys],
    }


def survey_to_json(survey: Survey) -> dict[str, Any]:
    pair = survey.pair
    return {
        **get_fields(pair, "backend", "kind"),
        "operations": list(survey.moves),
        **get_fields(survey, "symmetries", "config"),
        "complete": survey.is_complete,
        "covered": pair.covered,
        "run": pair.programs,
        "steps": pair.steps,
        "avoided": pair.avoided,
        "diverging": dict(pair.signatures),
        "errors": pair.errors,
        "failures": [str(failure.path) for failure in pair.failures],
    }


# --- a search for planted faults --------------------------------------------------------


def get_search_status(searches: Searches) -> Text:
    seconds = time.monotonic() - searches.started
    over = sum(search.is_over for search in searches.all)
    if not searches.all:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    remaining = seconds * (len(searches.all) - over) / max(1, over)
    return Text(
        f"{seconds:.0f} s: {len(searches.found)} found, {over} of {len(searches.all)}"
        f" searches over, about {remaining:.0f} s left",
        "dim",
    )


def print_searches(console: Console, searches: Searches) -> None:
    """Prints a table for each backend, the survivors, and a summary."""
    for backend in dict.fromkeys(search.backend for search in searches.all):
        console.print(draw_searches(backend, searches))
    for search in list_survivors(searches):
        status = f"ERROR: {search.error}" if search.error else "not found"
        planted = search.planted
        text = f"{search.backend}: {planted.id}: {status}: {planted.mistake}"
        console.print(Text(text, "bold red"))
    for backend, error in searches.dead.items():
        text = f"{backend}: ERROR: could not be loaded: {error}"
        console.print(Text(text, "bold yellow"))
    for backend, reason in searches.unavailable.items():
        console.print(Text(f"{backend}: not searched: {reason}", "yellow"))
    console.print(format_searches(searches))


def draw_searches(backend: str, searches: Searches) -> Table:
    table = make_table(backend, "programs", "seconds", "ops", "excess")
    table.add_column("differs in", overflow="fold")
    for search in searches.all:
        if search.backend == backend:
            excess = search.excess
            table.add_row(
                search.planted.id,
                str(search.programs) if search.is_found else f"({search.programs})",
                f"{search.seconds:.1f}",
                str(search.operations or "–"),
                "–" if excess is None else f"{excess:+d}" if excess else "0",
                get_difference(search),
                style=None if search.is_found or not search.is_over else "bold red",
            )
    return table


def get_difference(search: Search) -> str:
    """Returns the operation and what differs, without contract and kind."""
    if search.signature is None:
        return "ERROR" if search.error else "survives" if search.is_over else "…"
    prefix = f"{search.planted.contract}-{search.planted.kind}-"
    return search.signature.removeprefix(prefix)


def format_searches(searches: Searches) -> Text:
    counts = summarize_searches(searches)
    text = f"{counts['found']} of {counts['faults']} faults found"
    if counts["found"]:
        text += (
            ": programs {median_programs:g} (median), at most {most_programs}; seconds"
            " {median_seconds:g}, at most {most_seconds:g}; operations over the shortest"
            " known {median_excess:g}, at most {most_excess}"
        ).format(**counts)
    text += f"; {searches.seconds:.0f} s, seed {searches.settings.seed}"
    if searches.interrupted:
        text += " (stopped before the end)"
    return Text(text, "green" if searches.get_exit_status() == 0 else "bold red")


# --- sets of vectors --------------------------------------------------------------------


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
    print_failures(console, outcome)
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
        has_found = diverged or pair.is_diverging
        style = "bold red" if has_found else "bold yellow" if pair.is_error else "green"
        agreed = Text(str(count_agreed(pair)), style)
        rest = (diverged, pair.undeclared.total(), pair.avoided, pair.crashes)
        table.add_row(pair.name, agreed, *(str(number or "–") for number in rest))
    return table


def format_verification(outcome: Outcome) -> Text:
    programs = sum(pair.programs for pair in outcome.pairs)
    diverged = sum(map(count_diverged, outcome.pairs))
    status = outcome.get_exit_status()
    crashes = sum(pair.crashes for pair in outcome.pairs)
    words = "all agree" if status == 0 else f"{diverged} of them diverge"
    if crashes:
        words += f", {crashes} crash or hang"
    if not diverged and not crashes and any(pair.missing for pair in outcome.pairs):
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
        **get_fields(pair, "backend", "contract", "kind"),
        "agreed": count_agreed(pair),
        "diverged": count_diverged(pair),
        "not_declared": dict(pair.undeclared),
        "known": pair.avoided,
        "crashed": pair.crashes,
        **get_fields(pair, "errors", "missing"),
        "failures": [describe_failure(failure) for failure in pair.failures],
    }
