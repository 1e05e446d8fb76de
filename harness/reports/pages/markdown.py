"""Reports for GitHub: a summary in Markdown, and annotations of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lockstep.harness.core.errors import clean
from lockstep.harness.reports.model import Matrix, list_notes, make_matrices
from lockstep.harness.reports.pages.view import FailureView, ReportView

# --- a summary for the page of a run ----------------------------------------------------


MOST_BYTES = 256 << 10
"""A step's summary on GitHub takes 1 MiB of all steps together."""

MOST_STEPS = 24
MOST_LINES = 60
MOST_INDEX = 200
MOST_LINE = 800


def render_markdown(report: ReportView) -> str:
    """The summary. All that comes from a file is set as code, where nothing is markup."""
    head = "\n".join(list_head(report))
    text, left = head, 0
    for failure in report.failures:
        block = "\n" + "\n".join(list_failure(failure)) + "\n"
        if len((text + block).encode()) > MOST_BYTES:
            left += 1
        else:
            text += block
    left += report.more
    if left:
        text += f"\n{left} more failures are left out.\n"
    return text


def list_head(report: ReportView) -> Iterator[str]:
    mark = "✗ " if report.failures else ""
    yield f"## Lockstep: {mark}{report.headline}"
    yield ""
    yield f"{report.summary}."
    for matrix in make_matrices(report.outcomes):
        yield from ("", *list_matrix(matrix))
    yield from list_bounded(report.notes)
    yield from list_missed(report)
    yield from list_bounded(report.broken)
    yield ""
    if len(report.failures) > 1:
        yield from list_groups(report)


def list_groups(report: ReportView) -> Iterator[str]:
    """A line for each failure, below those with the same likely cause one sentence."""
    lines: list[str] = []
    for group in report.groups:
        words = f"{group.failures[0].name}: {group.sentence}".rstrip(": ")
        lines.append(f"* {code(words)}")
        lines += [f"  * {one.number}. {code(one.line)}" for one in group.failures]
    yield from lines[:MOST_INDEX]
    if len(lines) > MOST_INDEX:
        yield f"* {len(lines) - MOST_INDEX} more lines"
    yield ""


def list_matrix(matrix: Matrix) -> Iterator[str]:
    yield list_cells([code(matrix.contract), *map(code, matrix.kinds)])
    yield list_cells(["---", *("---:" for _ in matrix.kinds)])
    for backend, pairs in matrix.rows:
        cells = ["–" if pair is None else pair.cell for pair in pairs]
        yield list_cells([code(backend), *cells])


def list_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def list_bounded(lines: Iterable[str]) -> Iterator[str]:
    every = list(lines)
    if every:
        yield ""
    for line in every[:MOST_LINES]:
        yield f"* {code(line)}"
    if len(every) > MOST_LINES:
        yield f"* {len(every) - MOST_LINES} more"


def list_missed(report: ReportView) -> Iterator[str]:
    """The cells that were never reached, folded away."""
    pairs = [pair for pair in report.pairs if pair.missed]
    if not pairs:
        return
    yield from ("", f"<details><summary>never reached: {report.missed} cells</summary>")
    yield from list_bounded(pair.format_missed() for pair in pairs)
    yield from ("", "</details>")


def list_failure(failure: FailureView) -> Iterator[str]:
    yield f"### {failure.number}. {code(failure.name)} {code(failure.signature)}"
    yield ""
    yield from fence([*failure.tell(MOST_STEPS), *failure.saved.remarks])
    yield ""
    yield from fence([failure.replay], "sh")


def code(text: str) -> str:
    """A span of code on one line, whatever is in the text: bars would end a cell."""
    words = clean(text).replace("|", "¦") or " "
    ticks = "`" * (1 + longest_run(words))
    pad = " " if words[0] == "`" or words[-1] == "`" else ""
    return f"{ticks}{pad}{words}{pad}{ticks}"


def fence(lines: Iterable[str], language: str = "text") -> list[str]:
    """A block of code, each line cleaned."""
    cleaned = [indent(line) + clean(line, MOST_LINE) for line in lines]
    ticks = "`" * max(3, 1 + max(map(longest_run, cleaned), default=0))
    return [f"{ticks}{language}", *cleaned, ticks]


def indent(line: str) -> str:
    """The blanks that a line begins with."""
    return line[: len(line) - len(line.lstrip(" "))][:8]


def longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


# --- annotations: workflow commands, one a line -----------------------------------------


MOST = 10
"""GitHub shows so many errors of one step, and drops the others without a word."""

MOST_MESSAGE = 800

ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
"""In a message."""

PROPERTY_ESCAPES = {**ESCAPES, ":": "%3A", ",": "%2C"}
"""In a property, where these end a value."""

NAME = "lockstep"

WARNINGS = ("unavailable", "unchecked", "saved")
"""Sorts of notes that are warnings; the others are errors."""


def render_annotations(report: ReportView) -> str:
    """An error for each failure, for what could not be checked and for each file that
    cannot be read, the last of them for all that are left out; a warning for each backend
    that is not there, for what a backend's declaration leaves unchecked, and for saved
    failures that have agreed, not come back or not run."""
    notes = [note for outcome in report.outcomes for note in list_notes(outcome)]
    errors = [
        (f"{one.name}: {one.signature}", format_failure(one)) for one in report.failures
    ]
    errors += [
        (note.subject, note.message) for note in notes if note.sort not in WARNINGS
    ]
    errors += [(NAME, line) for line in report.broken]
    shown = errors if len(errors) + report.more <= MOST else errors[: MOST - 1]
    left = len(errors) + report.more - len(shown)
    if left:
        shown = [*shown, (NAME, f"{left} more; the summary of the run lists them")]
    absent = [(NAME, note.format()) for note in notes if note.sort in WARNINGS]
    lines = [write_command("error", *error) for error in shown]
    lines += [write_command("warning", *warning) for warning in absent[:MOST]]
    return "".join(lines)


def format_failure(failure: FailureView) -> str:
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
