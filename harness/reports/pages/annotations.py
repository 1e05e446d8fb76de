"""Failures as annotations of a run on GitHub: workflow commands, one a line."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.harness.core.errors import clean
from lockstep.harness.reports.model import list_notes
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
    notes = [note for outcome in report.outcomes for note in list_notes(outcome)]
    errors = [
        (f"{one.name}: {one.signature}", say_failure(one)) for one in report.failures
    ]
    errors += [(note.subject, note.words) for note in notes if note.sort != "unavailable"]
    errors += [(NAME, line) for line in report.broken]
    shown = errors if len(errors) + report.more <= MOST else errors[: MOST - 1]
    left = len(errors) + report.more - len(shown)
    if left:
        shown = [*shown, (NAME, f"{left} more; the summary of the run lists them")]
    absent = [(NAME, note.say()) for note in notes if note.sort == "unavailable"]
    lines = [write_command("error", *error) for error in shown]
    lines += [write_command("warning", *warning) for warning in absent[:MOST]]
    return "".join(lines)


def say_failure(failure: FailureView) -> str:
    """The difference, and below it the line that runs it again."""
    step = "" if failure.step is None else f"step {failure.step}: "
    return f"{step}{failure.message}\n{failure.replay}"


def write_command(level: str, title: str, message: str) -> str:
    """A workflow command. Whatever stands in a file, it is one line, and one command."""
    lines = [clean(line, MOST_MESSAGE) for line in message.split("\n")]
    text = escape("\n".join(lines), ESCAPES)
    return f"::{level} title={escape(clean(title), PROPERTY_ESCAPES)}::{text}\n"


def escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)
