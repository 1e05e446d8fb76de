"""Prints the report of a check on the terminal, and shows the progress of jobs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import SEEK_END, StringIO
from shlex import quote
from textwrap import TextWrapper
from typing import Any, Generic, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lockstep.harness.core.errors import clean, make_printable
from lockstep.harness.execution.causes import get_evidence
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.programs.program import UNSHRUNK
from lockstep.harness.programs.words import (
    describe_failure,
    describe_line,
    tell_tokens,
)
from lockstep.harness.reports.causes import count_causes, group_failures
from lockstep.harness.reports.model import (
    MOST_LISTED,
    Matrix,
    fold_notes,
    format_amount,
    format_missed,
    format_verdict,
    list_notes,
    list_remarks,
    make_matrices,
)
from lockstep.harness.reports.outcome_file import OutcomeSummary, PairSummary, summarize


class PlainConsole(Console):
    """A console that is safe for untrusted text.

    Brackets are not interpreted as markup, and control characters, such as those in an
    escape sequence, are printed as dots.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                lines = map(make_printable, text.split("\n"))
                yield Segment("\n".join(lines), style)

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError. Without this method, rich would end the command with
        status 1."""
        raise BrokenPipeError


STYLES = {
    "diverges": "bold red",
    "unfinished": "bold yellow",
    "error": "bold yellow",
    "cut": "dim",
    "agrees": "green",
    "missing": "bold yellow",
    "unproven": "bold yellow",
    "covered": "dim",
    "outdated": "bold red",
    "dead": "bold yellow",
    "beside": "dim",
}
"""Styles of verdicts and notes; other notes are yellow."""

MOST_DETAILED = 8
"""The maximum number of pairs with details. If there are more pairs, only pairs that
do not agree get details."""

WIDE = 76
"""The number of terminal columns that a table with all details needs."""


def make_table(title: str, *columns: str, is_folded: bool = False) -> Table:
    """Makes a table with a column of names and columns of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title, overflow="fold", min_width=10)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=not is_folded, overflow="fold")
    return table


def draw_matrices(outcome: OutcomeSummary, width: int) -> Group:
    """Draws all matrices, with an empty line between them."""
    first, *others = (draw_matrix(matrix, width) for matrix in make_matrices([outcome]))
    for table in others:
        table.show_edge = False
    return Group(first, *(Padding(table, (0, 0, 1, 1), expand=False) for table in others))


def draw_matrix(matrix: Matrix, width: int) -> Table:
    longest = max(len(backend) for backend, _ in matrix.rows)
    is_wide = longest + sum(len(kind) + 1 for kind in matrix.kinds) > width - 4
    heads = [kind.replace("-", "-\n", 1) if is_wide else kind for kind in matrix.kinds]
    table = make_table(matrix.contract, *heads)
    for backend, pairs in matrix.rows:
        table.add_row(backend, *map(draw_cell, pairs))
    return table


def draw_cell(pair: PairSummary | None) -> Text:
    return Text("–", "dim") if pair is None else Text(pair.cell, STYLES[pair.verdict])


def make_details(pairs: Sequence[PairSummary], width: int = WIDE) -> Table:
    """Makes a table with the amount of work for each pair.

    If `width` is small, the table has only two columns of numbers.
    """
    is_wide = width >= WIDE
    extra = ("steps", "cells", "margin", "known") if is_wide else ("cells",)
    table = make_table("what was run", "programs", *extra)
    for pair in pairs:
        steps = f"{pair.steps / 1000:.0f}k" if pair.steps >= 10_000 else str(pair.steps)
        cells = f"{pair.reached}/{pair.cells.reachable}"
        wide = (steps, cells, pair.margin, str(pair.known_divergences or "–"))
        table.add_row(pair.name, str(pair.programs), *(wide if is_wide else (cells,)))
    return table


def list_empty_cells(outcome: OutcomeSummary, verbose: bool = False) -> Iterator[Text]:
    """Lists the cells that no program reached. If there are many pairs, lists nothing
    unless `verbose` is set."""
    run = [pair for pair in outcome.pairs if pair.programs and not pair.missing]
    pairs = [pair for pair in run if pair.missed]
    if verbose or len(pairs) <= MOST_LISTED:
        most = None if verbose else MOST_LISTED
        for pair in pairs:
            yield Text(format_missed(pair, most=most), "yellow")


def print_failure(
    console: Console, failure: Failure, programs: int = 0, former: Failure | None = None
) -> None:
    """Prints a failure in words, and the command that reproduces it.

    Args:
        console: the console to print on.
        failure: the failure to print.
        programs: the number of programs with its signature; 0 if it is not known.
        former: a printed failure with the same steps, which are not printed again.
    """
    seen = failure.divergence
    lines = [*describe_failure(failure.program, seen.step, seen.what, seen.message)]
    if former is not None:
        lines = [f"{lines[0]}: the steps of {former.signature} above", lines[-1]]
    head = Text(f"\n✗ {failure.backend}", "bold red")
    console.print(head.append(f" {failure.signature}", "not bold default"))
    for line in (
        *lines,
        *tell_tokens(failure.program, seen),
    ):
        console.print(Text(indent(line, console.width)), soft_wrap=True)
    unshrunk = failure.program.meta.get(UNSHRUNK)
    for line in list_remarks(programs, failure.flaky, failure.answers, unshrunk):
        console.print(Text(indent(line, console.width), "yellow"))
    if failure.unsaved:
        reason = f"its file could not be written ({failure.unsaved}); outcome.json has it"
        console.print(Text(indent(reason, console.width), "bold yellow"))
    else:
        console.print(Text(f"  {failure.replay}", "bold"), soft_wrap=True)


def format_whole(failure: Failure, width: int = 100) -> str:
    """Returns a failure as `print_failure` prints it, below a line with its cause."""
    text = StringIO(f"{failure.signature}: {failure.divergence.message}\n")
    text.seek(0, SEEK_END)
    print_failure(PlainConsole(file=text, width=width), failure)
    return text.getvalue()


def print_failures(console: Console, outcome: Outcome) -> None:
    printed: dict[tuple[str, int, str], Failure] = {}
    for pair in outcome.pairs:
        counts = pair.total.signatures
        for failure in pair.failures:
            steps = pair.backend, failure.divergence.step, str(failure.program.ops)
            former = printed.get(steps)
            printed.setdefault(steps, failure)
            print_failure(console, failure, counts.get(failure.signature, 0), former)
    if len(outcome.failures) > MOST_LISTED:
        print_causes(console, outcome.failures)


def print_causes(console: Console, failures: Sequence[Failure]) -> None:
    """Prints a line for each failure, grouped by the probable cause."""
    groups = group_failures(
        failures,
        [get_evidence(failure.program, failure.divergence) for failure in failures],
        [failure.backend for failure in failures],
        [failure.cause or None for failure in failures],
    )
    head = f"\n{len(failures)} failures, {count_causes(groups)}:"
    console.print(Text(head, "bold"))
    for group in groups:
        first = group.failures[0]
        lines = [f"{first.backend}: {group.sentence or first.signature}"]
        for failure in group.failures:
            seen = failure.divergence
            line = describe_line(failure.program, seen.step, seen.message)
            lines.append(f"  {clean(line)}")
        for line in lines:
            console.print(Text(indent(line, console.width)), soft_wrap=True)


def indent(line: str, width: int) -> str:
    """Wraps a line of a report, and indents its continuation."""
    wrapped = TextWrapper(
        width,
        initial_indent="  ",
        subsequent_indent=" " * 6,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.fill(line)


def print_notes(
    console: Console,
    outcome: OutcomeSummary,
    verb: str = "checked",
    *,
    verbose: bool = True,
) -> None:
    """Prints the notes. Without `verbose`, counts the most common notes instead of
    printing each."""
    notes = list_notes(outcome) if verbose else fold_notes(outcome)
    for note in notes:
        text = Text(note.format(verb), STYLES.get(note.sort, "yellow"))
        console.print(text, soft_wrap=note.sort == "saved")  # paths stay whole


def print_outcome(console: Console, outcome: Outcome, *, verbose: bool = False) -> None:
    """Prints the failures, the matrix, the unreached cells and the notes."""
    summary = summarize(outcome)
    print_failures(console, outcome)
    detailed = summary.pairs
    if len(detailed) > MOST_DETAILED and not verbose:
        detailed = [pair for pair in detailed if pair.verdict != "agrees"][:MOST_DETAILED]
    if detailed:
        console.print(make_details(detailed, console.width))
    if outcome.pairs:
        console.print(draw_matrices(summary, console.width))
    for line in list_empty_cells(summary, verbose):
        console.print(line)
    print_notes(console, summary, verbose=verbose)
    if not verbose and len(outcome.pairs) > MOST_DETAILED:
        console.print(Text("--verbose lists what was run and what was not", "dim"))
    text = (
        f"{format_verdict([summary], len(outcome.failures))}: {format_amount([summary])}"
    )
    console.print(Text(text, "bold red" if summary.exit_status else "green"))


REPLAYED_STYLES = {
    "FIXED": "green",
    "AGREES": "green",
    "EXCLUDED": "yellow",
    "ERROR": "bold yellow",
}


def print_replayed(
    console: Console, subject: str, status: str, message: str = ""
) -> None:
    tail = make_printable(f" {subject}: {message}" if message else f" {subject}")
    line = Text.assemble((status, REPLAYED_STYLES.get(status, "bold red")), tail)
    console.print(line, soft_wrap=True)


# --- running work -----------------------------------------------------------------------


QUIET_SECONDS = 15.0
"""Seconds until the first line of progress if the output is not a terminal. Each
further interval is twice as long, up to `QUIETEST_SECONDS`."""

QUIETEST_SECONDS = 240.0

DRAWN_SECONDS = 0.2

T = TypeVar("T")


class Progress(Generic[T]):
    """Shows the progress of a job.

    A terminal shows a display that is redrawn; any other output gets a line from time to
    time. If the terminal is closed, the job continues.

    Args:
        console: the console to print on.
        draw: makes the display of a terminal.
        say: makes the line for other outputs.
    """

    def __init__(
        self,
        console: Console,
        draw: Callable[[T], RenderableType],
        say: Callable[[T], Text],
    ) -> None:
        self.console, self.draw, self.say = console, draw, say
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.redraws = console.is_terminal and not console.is_dumb_terminal
        self.printed, self.quiet = time.monotonic(), QUIET_SECONDS
        self.drawn = 0.0

    def __enter__(self) -> Progress[T]:
        if self.redraws:
            try:
                with suppress(OSError):
                    self.live.__enter__()
            except BaseException:  # a signal after the cursor was hidden
                self.console.show_cursor(True)
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.redraws:
            with suppress(OSError):
                self.live.__exit__(None, None, None)

    def show(self, work: T) -> None:
        now = time.monotonic()
        with suppress(OSError):
            if self.redraws:
                if now - self.drawn > DRAWN_SECONDS:
                    self.drawn = now
                    self.live.update(self.draw(work), refresh=True)
            elif now - self.printed > self.quiet:
                self.printed = now
                self.quiet = min(2 * self.quiet, QUIETEST_SECONDS)
                self.console.print(self.say(work), soft_wrap=True)


RECENT_SECONDS = 60.0


class Pace:
    """The recent rate of programs.

    The rate of the whole run would mislead, because a run begins with imports, and
    because some kinds take ten times as long as others.
    """

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def estimate(self, seconds: float, programs: int, remaining: int) -> float:
        """Estimates the seconds until the `remaining` programs have run.

        Args:
            seconds: the time since the beginning; it never decreases between calls.
            programs: the number of programs that have run.
            remaining: the number of programs that have not run yet.
        """
        self.seen.append((seconds, programs))
        while len(self.seen) > 2 and self.seen[1][0] < seconds - RECENT_SECONDS:
            self.seen.popleft()
        begin, previous = self.seen[0]
        if programs == previous:  # slow programs: none ended recently
            return remaining * seconds / programs
        return remaining * (seconds - begin) / (programs - previous)


def draw_progress(pace: Pace, width: int, outcome: Outcome) -> RenderableType:
    """Draws a running check; the status is first, since a terminal cuts off the end."""
    status = get_check_status(pace, outcome)
    if not outcome.pairs:
        return status
    return Group(status, draw_matrices(summarize(outcome), width))


def get_check_status(pace: Pace, outcome: Outcome) -> Text:
    """Formats the progress of a check or campaign, its rate, and the time left."""
    seconds = max(0.01, time.monotonic() - outcome.started)
    totals = [pair.total for pair in outcome.pairs]
    programs = sum(total.programs for total in totals)
    if not programs:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    steps = sum(total.steps for total in totals)
    wanted = sum(pair.wanted for pair in outcome.pairs)
    reached = sum(map(Pair.count_reached, outcome.pairs))
    cells = sum(len(pair.cells) for pair in outcome.pairs)
    estimates = []
    if programs <= wanted:
        estimates.append(pace.estimate(seconds, programs, wanted - programs))
    if outcome.settings.seconds is not None:
        estimates.append(outcome.settings.seconds - seconds)
    return Text(
        f"{seconds:.0f} s: {programs:,} of {max(programs, wanted):,} programs,"
        f" {steps / seconds:,.0f} steps/s, {reached:,} of {cells:,} cells,"
        f" {len(outcome.failures)} failures,"
        f" about {max(0.0, min(estimates, default=0.0)):.0f} s left",
        "dim",
    )


def describe_state(outcome: Outcome, location: str) -> Text:
    """Describes whether a campaign is complete or can be continued."""
    if outcome.is_cut or not outcome.pairs:
        backends = (f" --backend {quote(name)}" for name in outcome.settings.backends)
        command = f"lockstep campaign resume {quote(location)}{''.join(backends)}"
        return Text(f"not over; go on with: {command}", "yellow")
    return Text("the campaign is over", "dim")
