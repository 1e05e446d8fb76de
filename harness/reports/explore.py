"""The output of an exploration on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.harness.jobs.explore import Exploration, Survey
from lockstep.harness.reports.console import (
    STYLES,
    make_table,
    print_failure,
    print_notes,
)
from lockstep.harness.reports.model import summarize, summarize_pair


def get_exploration_status(exploration: Exploration) -> Text:
    """The progress of an exploration, its rate, and the time left."""
    outcome, surveys = exploration.outcome, exploration.surveys
    seconds = time.monotonic() - outcome.started
    covered = sum(survey.covered for survey in surveys)
    fresh = covered - sum(survey.resumed for survey in surveys)
    if not covered:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    done = sum(survey.done for survey in surveys)
    parts = sum(len(survey.parts) for survey in surveys)
    text = (
        f"{seconds:.0f} s: {covered:,} programs, {fresh / seconds:,.0f}/s, {done:,} of"
        f" {parts:,} parts, {len(outcome.failures)} failures"
    )
    if fresh and done:
        left = sum(map(estimate_left, surveys)) * seconds / fresh
        text += f", about {left:.0f} s left"
    return Text(text, "dim")


def estimate_left(survey: Survey) -> float:
    """Programs that are still to come, if the parts are of one size."""
    if not survey.done:
        return 0.0
    return survey.pair.covered / survey.done * (len(survey.parts) - survey.done)


def print_exploration(console: Console, exploration: Exploration) -> None:
    """Prints what was found and what was covered."""
    for failure in exploration.outcome.failures:
        print_failure(console, failure)
    if exploration.surveys:
        console.print(draw_surveys(exploration))
    print_notes(console, summarize(exploration.outcome), "explored")
    for note in list_own_notes(exploration):
        console.print(note)
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
    diverging, verdict = sum(survey.pair.signatures.values()), pair.verdict
    if diverging or verdict == "diverges":
        return Text(f"✗ {diverging:,} diverge", STYLES["diverges"])
    if verdict in ("unfinished", "error"):
        return Text(pair.cell, STYLES[verdict])
    if not survey.is_complete:
        return Text(f"… {survey.done} of {len(survey.parts)}", "yellow")
    return Text("✓ agree", STYLES["agrees"])


def list_own_notes(exploration: Exploration) -> Iterator[Text]:
    for pair in exploration.outcome.pairs:
        if pair.avoided:
            count = f"{pair.avoided:,} programs that end with a known divergence"
            known = f"{pair.name}: skipped {count}, and all that continue from there"
            yield Text(known, "yellow")
    if any(survey.symmetries for survey in exploration.surveys):
        names = "names (of sequences, users, tokens)"
        yield Text(f"of programs that differ only in {names}, one ran", "dim")


def format_exploration(exploration: Exploration) -> Text:
    """Says exactly what was covered, and no more."""
    outcome, surveys = exploration.outcome, exploration.surveys
    if not surveys:
        return Text("nothing was explored", "bold red")
    is_complete = all(survey.is_complete for survey in surveys)
    what = "every program" if is_complete else "not every program"
    domains = "this domain" if len(surveys) == 1 else "these domains"
    covered = sum(survey.covered for survey in surveys)
    diverging = sum(sum(survey.pair.signatures.values()) for survey in surveys)
    verdict = "none diverges" if not diverging else f"{diverging:,} diverge"
    unfinished = sum(survey.pair.unfinished for survey in surveys)
    if unfinished:
        verdict += f", {unfinished:,} came upon what is not written yet"
    depth = exploration.depth
    count = f"{depth} operation" + ("" if depth == 1 else "s")
    text = (
        f"{what} of up to {count} over {domains}: {covered:,},"
        f" {verdict} ({outcome.seconds:.0f} s)"
    )
    resumed = sum(survey.resumed for survey in surveys)
    if resumed:
        text += f"; {resumed:,} of them in an earlier run"
    if outcome.is_cut:
        text += "; stopped before the end: --resume goes on from here"
    elif not is_complete:
        text += "; what was left out comes behind an error"
    good = outcome.get_exit_status() == 0
    style = "green" if good and is_complete else "yellow" if good else "bold red"
    return Text(text, style)


def format_config(config: Mapping[str, Any]) -> str:
    """The fields of a config, as a person writes them."""
    parts = [
        f"{name} {format_value(value)}"
        for name, value in config.items()
        if name != "kind"
    ]
    return ", ".join(parts) or "the plainest config"


def format_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, Mapping):
        return " ".join(map(str, value.values()))
    return "none" if value is None else str(value).lower()


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
        "versions": outcome.versions,
        "unavailable": outcome.unavailable,
        "dead": outcome.dead,
        "errors": {pair.name: pair.errors for pair in outcome.pairs if pair.errors},
        "pairs": [survey_to_json(survey) for survey in exploration.surveys],
    }


def survey_to_json(survey: Survey) -> dict[str, Any]:
    pair = survey.pair
    return {
        "backend": pair.backend,
        "kind": pair.kind,
        "operations": list(survey.moves),
        "symmetries": survey.symmetries,
        "config": dict(survey.config),
        "complete": survey.is_complete,
        "covered": pair.covered,
        "run": pair.programs,
        "steps": pair.steps,
        "avoided": pair.avoided,
        "diverging": dict(pair.signatures),
        "errors": pair.errors,
        "failures": [str(failure.path) for failure in pair.failures],
    }
