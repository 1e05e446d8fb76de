"""Renders reports for GitHub: a Markdown summary, and annotations of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lockstep.harness.core.errors import clean
from lockstep.harness.reports.model import (
    Matrix,
    format_missed,
    list_notes,
    make_matrices,
)
from lockstep.harness.reports.pages.view import FailureView, ReportView

# --- a summary for the page of a run ----------------------------------------------------


MOST_BYTES = 256 << 10
"""The maximum size of a summary. GitHub accepts 1 MiB for all steps of a job."""

MOST_STEPS = 24
MOST_LINES = 60
MOST_INDEX = 200
MOST_LINE = 800


def render_markdown(report: ReportView) -> str:
    """Renders the summary. Text from files is formatted as code, to disable markup."""
    text, skipped = "\n".join(list_head(report)), report.more
    for failure in report.failures:
        block = "\n" + "\n".join(list_failure(failure)) + "\n"
        if len((text + block).encode()) > MOST_BYTES:
            skipped += 1
        else:
            text += block
    return text + (f"\n{skipped} more failures are left out.\n" if skipped else "")


def list_head(report: ReportView) -> Iterator[str]:
    mark = "✗ " if report.failures else ""
    yield f"## Lockstep: {mark}{report.headline}"
    yield ""
    yield f"{report.summary}."
    for matrix in make_matrices(report.outcomes):
        yield from ("", *list_matrix(matrix))
    yield from list_bounded(f"* {code(note)}" for note in report.notes)
    if report.missed:
        yield f"\n<details><summary>never reached: {report.missed} cells</summary>"
        missed = [format_missed(pair) for pair in report.pairs if pair.missed]
        yield from list_bounded(f"* {code(line)}" for line in missed)
        yield "\n</details>"
    yield from list_bounded(f"* {code(line)}" for line in report.broken)
    if len(report.failures) > 1:
        yield from list_bounded(list_groups(report), MOST_INDEX)
    yield ""


def list_groups(report: ReportView) -> Iterator[str]:
    """Lists the failures, each group after the sentence about its cause."""
    for group in report.groups:
        sentence = f"{group.failures[0].name}: {group.sentence}".rstrip(": ")
        yield f"* {code(sentence)}"
        for failure in group.failures:
            yield f"  * {failure.number}. {code(failure.line)}"


def list_matrix(matrix: Matrix) -> Iterator[str]:
    yield list_cells([code(matrix.contract), *map(code, matrix.kinds)])
    yield list_cells(["---", *("---:" for _ in matrix.kinds)])
    for backend, pairs in matrix.rows:
        cells = ["–" if pair is None else pair.cell for pair in pairs]
        yield list_cells([code(backend), *cells])


def list_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def list_bounded(lines: Iterable[str], most: int = MOST_LINES) -> Iterator[str]:
    """Yields an empty line and the first `most` lines, or nothing without lines."""
    listed = list(lines)
    if listed:
        yield ""
    yield from listed[:most]
    if len(listed) > most:
        yield f"* {len(listed) - most} more"


def list_failure(failure: FailureView) -> Iterator[str]:
    yield f"### {failure.number}. {code(failure.name)} {code(failure.title)}"
    yield ""
    yield from fence([*failure.describe(MOST_STEPS), *failure.remarks])
    yield ""
    yield from fence([failure.replay], "sh")


def code(text: str) -> str:
    """Formats text as code on one line; a bar, which would end a cell, becomes ¦."""
    span = clean(text).replace("|", "¦") or " "
    ticks = "`" * (1 + longest_run(span))
    pad = " " if span[0] == "`" or span[-1] == "`" else ""
    return f"{ticks}{pad}{span}{pad}{ticks}"


def fence(lines: Iterable[str], language: str = "text") -> list[str]:
    """Formats lines as a block of code."""
    cleaned = [
        line[: len(line) - len(line.lstrip(" "))][:8] + clean(line, MOST_LINE)
        for line in lines
    ]
    ticks = "`" * max(3, 1 + max(map(longest_run, cleaned), default=0))
    return [f"{ticks}{language}", *cleaned, ticks]


def longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


# --- annotations: workflow commands, one a line -----------------------------------------


MOST = 10
"""The number of errors of a step that GitHub shows; it silently drops further errors."""

MOST_MESSAGE = 800

ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
"""The escapes in a message."""

PROPERTY_ESCAPES = {**ESCAPES, ":": "%3A", ",": "%2C"}
"""The escapes in a property, which "," and ":" would otherwise end."""

NAME = "lockstep"

WARNINGS = ("unavailable", "undeclared", "unchecked", "saved", "attention")
QUIET = ("beside", "covered")
"""Sorts of notes that are warnings, or no annotations; the others are errors."""


def render_annotations(report: ReportView) -> str:
    """Renders failures and problems as errors, gaps of the check as warnings.

    Errors are failures, files that cannot be read, and all notes whose sort is not in
    `WARNINGS` or `QUIET`. If there are too many errors, the last error counts the omitted
    errors.
    """
    notes = [note for outcome in report.outcomes for note in list_notes(outcome)]
    errors = [
        (f"{failure.name}: {failure.title}", format_failure(failure))
        for failure in report.failures
    ]
    errors += [
        (note.subject, note.message)
        for note in notes
        if note.sort not in (*WARNINGS, *QUIET)
    ]
    errors += [(NAME, line) for line in report.broken]
    shown = errors if len(errors) + report.more <= MOST else errors[: MOST - 1]
    if skipped := len(errors) + report.more - len(shown):
        shown = [*shown, (NAME, f"{skipped} more; the summary of the run lists them")]
    warnings = [(NAME, note.format()) for note in notes if note.sort in WARNINGS]
    lines = [write_command("error", *error) for error in shown]
    lines += [write_command("warning", *warning) for warning in warnings[:MOST]]
    return "".join(lines)


def format_failure(failure: FailureView) -> str:
    """Formats the difference of a failure, and the command that replays the failure."""
    step = "" if failure.step is None else f"step {failure.step}: "
    return f"{step}{failure.sentence}\n{failure.replay}"


def write_command(level: str, title: str, message: str) -> str:
    """Formats a workflow command; escaping keeps its text from ending the command."""
    lines = [clean(line, MOST_MESSAGE) for line in message.split("\n")]
    text = escape("\n".join(lines), ESCAPES)
    return f"::{level} title={escape(clean(title), PROPERTY_ESCAPES)}::{text}\n"


def escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)
