"""Reports explorations, searches for faults, and vectors, on the terminal and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lockstep.harness.jobs.explore import Exploration, Survey
from lockstep.harness.jobs.faults import (
    Search,
    Searches,
)
from lockstep.harness.jobs.vectors.sets import Done
from lockstep.harness.programs.vectors.files import Holds
from lockstep.harness.programs.words import format_field
from lockstep.harness.reports.console import (
    STYLES,
    make_table,
    print_failures,
    print_notes,
)
from lockstep.harness.reports.outcome_file import get_fields, summarize, summarize_pair

# --- an exploration ---------------------------------------------------------------------


def get_exploration_status(exploration: Exploration) -> Text:
    """Formats the progress of an exploration."""
    outcome, surveys = exploration.outcome, exploration.surveys
    seconds = time.monotonic() - outcome.started
    covered = sum(survey.covered for survey in surveys)
    done = sum(survey.done for survey in surveys)
    total = sum(len(survey.domain.parts) for survey in surveys)
    return Text(
        f"{seconds:.0f} s: {covered:,} programs, {done:,} of {total:,} parts,"
        f" {len(outcome.failures)} failures",
        "dim",
    )


def print_exploration(console: Console, exploration: Exploration) -> None:
    """Prints failures, the covered programs of each pair, notes, and the verdict."""
    print_failures(console, exploration.outcome)
    for survey in exploration.surveys:
        console.print(format_survey(survey))
    print_notes(console, summarize(exploration.outcome), "explored")
    console.print(format_exploration(exploration))


def format_survey(survey: Survey) -> Text:
    """Formats the domain of a pair, the covered programs, and the result."""
    pair, domain, summary = survey.pair, survey.domain, summarize_pair(survey.pair)
    text = f"{pair.name}, {format_config(domain.config)}: {len(domain.moves)} operations,"
    text += f" {survey.covered:,} programs"
    if pair.avoided:
        text += f", without {pair.avoided:,} that end with a known divergence"
    if domain.symmetries:
        text += "; of programs that differ only in names, one ran"
    result = summary.cell
    if summary.verdict == "agrees" and not survey.is_complete:
        result = f"… {survey.done} of {len(domain.parts)} parts"
    return Text(f"{text}: {result}", STYLES[summary.verdict])


def format_exploration(exploration: Exploration) -> Text:
    """Formats the verdict of an exploration, with the exact coverage."""
    outcome, surveys = exploration.outcome, exploration.surveys
    if not surveys:
        return Text("nothing was explored", "bold red")
    is_complete = all(survey.is_complete for survey in surveys)
    covered = sum(survey.covered for survey in surveys)
    crashes = sum(survey.pair.crashes for survey in surveys)
    unfinished = sum(survey.pair.unfinished for survey in surveys)
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
    if outcome.is_cut:
        text += "; stopped before the end"
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
    """Returns the JSON document of an exploration."""
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
        "operations": list(survey.domain.moves),
        **get_fields(survey.domain, "symmetries", "config"),
        "complete": survey.is_complete,
        "covered": pair.covered,
        "run": pair.programs,
        "steps": pair.steps,
        "avoided": pair.avoided,
        "diverging": dict(pair.signatures),
        "errors": pair.errors,
        "unproven": pair.list_unproven(),
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
    """Prints a line for each fault and for each backend that could not run, and a
    summary."""
    for search in searches.all:
        console.print(format_search(search), soft_wrap=True)
    for backend, error in searches.dead.items():
        text = f"{backend}: ERROR: could not be loaded: {error}"
        console.print(Text(text, "bold yellow"))
    for backend, reason in searches.unavailable.items():
        console.print(Text(f"{backend}: not searched: {reason}", "yellow"))
    text = f"{len(searches.found)} of {len(searches.all)} faults found"
    if not (searches.all or searches.dead or searches.unavailable):
        text += ": no backend names its planted mistakes in `Backend.faults`"
    text += f"; {searches.seconds:.0f} s, seed {searches.settings.seed}"
    if searches.interrupted:
        text += " (stopped before the end)"
    console.print(Text(text, "green" if not searches.get_exit_status() else "bold red"))


def format_search(search: Search) -> Text:
    line = f"{search.backend}: {search.planted.id}: "
    if search.is_found:
        line += f"{search.signature} after {search.programs} programs"
        return Text(f"{line}; the shortest has {search.operations} operations")
    status = f"not found in {search.programs} programs"
    status = f"ERROR: {search.error}" if search.error else status
    style = "bold red" if search.is_over else "dim"
    return Text(f"{line}{status}: {search.planted.mistake}", style)


# --- sets of vectors --------------------------------------------------------------------


def get_export_status(done: Done) -> Text:
    drawn = sum(item.holds["drawn"] for item in done.values())
    return Text(f"{len(done)} kinds chosen, {drawn:,} programs drawn", "dim")


def print_export(console: Console, done: Done, folder: Path) -> None:
    """Prints the number of programs of each kind, and their coverage."""
    table = make_table("set", "programs", "drawn", "reached")
    for name, drawn in sorted(done.items()):
        goals = drawn.holds["covered"], drawn.holds["not_covered"]
        covered, missing = (sum(map(len, cells.values())) for cells in goals)
        counts = drawn.holds["programs"], drawn.holds["drawn"]
        table.add_row(name, *map(str, counts), f"{covered}/{covered + missing}")
    console.print(table)
    programs = sum(drawn.holds["programs"] for drawn in done.values())
    text = f"{folder}: {programs:,} programs; how to read them: {folder / 'README.md'}"
    console.print(text, soft_wrap=True)


def format_audit(
    folder: Path, files: Mapping[Path, Holds], differences: Sequence[str]
) -> Text:
    """Formats the verdict on a set of vectors as a line."""
    count = sum(holds.programs for holds in files.values())
    programs = f"{folder}: {count:,} programs in {len(files)} files"
    if differences:
        return Text(f"{programs}; the reference here expects something else", "bold red")
    return Text(f"{programs}, whole, and as the reference expects", "green")
