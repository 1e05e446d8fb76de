"""What failed, as annotations of a run on GitHub: workflow commands, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lockstep.harness.core.printable import clean, say_needed
from lockstep.harness.reports.pages.outcomes import OutcomeSummary
from lockstep.harness.reports.pages.view import FailureView, ReportView

MOST = 10
"""GitHub shows so many errors of one step, and drops the others without a word."""

MOST_MESSAGE = 800

ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
"""In a message."""

PROPERTY_ESCAPES = {**ESCAPES, ":": "%3A", ",": "%2C"}
"""In a property, where these end a value."""

NAME = "lockstep"


def render_annotations(report: ReportView) -> str:
    """An error for each failure, for what could not be checked and for each file that
    cannot be read, the last of them for all that are left out; a warning for each backend
    that is not there."""
    errors = list(list_errors(report))
    shown = errors if len(errors) + report.more <= MOST else errors[: MOST - 1]
    left = len(errors) + report.more - len(shown)
    if left:
        shown = [*shown, (NAME, f"{left} more; the summary of the run lists them")]
    lines = [write_command("error", *error) for error in shown]
    for outcome in report.outcomes:
        for backend, why in list(outcome.unavailable.items())[:MOST]:
            lines.append(write_command("warning", NAME, f"{backend}: not checked: {why}"))
    return "".join(lines)


def list_errors(report: ReportView) -> Iterator[tuple[str, str]]:
    """(title, message)."""
    for failure in report.failures:
        yield f"{failure.name}: {failure.signature}", say_failure(failure)
    for outcome in report.outcomes:
        yield from list_own_errors(outcome)
    for line in report.broken:
        yield NAME, line


def list_own_errors(outcome: OutcomeSummary) -> Iterator[tuple[str, str]]:
    """What a check could not do, and what of a ledger is no longer so."""
    for pair in outcome.pairs:
        for part, operation in pair.missing.items():
            yield pair.name, say_needed(part, operation)
        for error in pair.errors:
            yield pair.name, error
        for entry in pair.outdated:
            yield pair.name, f"the ledger is outdated: {entry}"
    yield from outcome.dead.items()


def say_failure(failure: FailureView) -> str:
    """What differs, and below it the line that runs it again."""
    step = "" if failure.step is None else f"step {failure.step}: "
    return f"{step}{failure.message}\n{failure.replay}"


def write_command(level: str, title: str, message: str) -> str:
    """A workflow command. Whatever stands in a file, it is one line, and one command."""
    lines = [clean(line, MOST_MESSAGE) for line in message.split("\n")]
    text = escape("\n".join(lines), ESCAPES)
    return f"::{level} title={escape(clean(title), PROPERTY_ESCAPES)}::{text}\n"


def escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)
