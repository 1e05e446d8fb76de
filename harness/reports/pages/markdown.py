"""A summary for the page of a run: a matrix, what failed, and how to see it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lockstep.harness.core.errors import clean
from lockstep.harness.reports.model import Matrix, make_matrices
from lockstep.harness.reports.pages.view import FailureView, ReportView

MOST_BYTES = 256 << 10
"""A step's summary on GitHub takes 1 MiB of all steps together."""

MOST_STEPS = 24
MOST_LINES = 60
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
    yield from list_bounded(
        f"{pair.name}: {pair.missed} of {pair.reachable}: {'; '.join(pair.groups)}"
        for pair in pairs
    )
    yield from ("", "</details>")


def list_failure(failure: FailureView) -> Iterator[str]:
    yield f"### {failure.number}. {code(failure.name)} {code(failure.signature)}"
    yield ""
    likely = [failure.saved.likely] if failure.saved.likely else []
    yield from fence([*failure.tell(MOST_STEPS), *likely])
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
