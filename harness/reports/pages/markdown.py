"""Renders a summary in Markdown, for the page of a run on GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lockstep.harness.core.errors import clean
from lockstep.harness.reports.model import Matrix, format_missed, make_matrices
from lockstep.harness.reports.pages.view import FailureView, ReportView

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
