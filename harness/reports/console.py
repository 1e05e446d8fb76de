"""The terminal's report of a check, and the display of running work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from lockstep.harness.jobs.outcome import Failure, Outcome, Pair
from lockstep.harness.programs.words import (
    describe_failure,
    describe_line,
    tell_tokens,
)
from lockstep.harness.reports.causes import group_failures
from lockstep.harness.reports.model import (
    MOST_LISTED,
    Matrix,
    OutcomeSummary,
    PairSummary,
    format_amount,
    format_verdict,
    list_notes,
    list_remarks,
    make_matrices,
    shorten_list,
    summarize,
)


class PlainConsole(Console):
    """A terminal on which text from outside does nothing: brackets in it are no markup,
    and in the place of each control character, such as the beginning of an escape
    sequence, stands a dot."""

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
        """Raises BrokenPipeError; rich would end the command with status 1."""
        raise BrokenPipeError


STYLES = {
    "diverges": "bold red",
    "unfinished": "bold yellow",
    "error": "bold yellow",
    "cut": "dim",
    "agrees": "green",
    "missing": "bold yellow",
    "outdated": "bold red",
    "dead": "bold yellow",
    "beside": "dim",
}
"""Of verdicts and notes; other notes are yellow."""

DETAILS = ("programs", "steps", "cells", "margin", "known")
MOST_DETAILED = 8
"""Pairs whose details are printed; of more, those that do not agree, as many."""

WIDE = 76
"""Columns of a terminal that has room for all of them."""


def make_table(title: str, *columns: str, is_folded: bool = False) -> Table:
    """A table with a column of names and columns of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title, overflow="fold", min_width=10)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=not is_folded, overflow="fold")
    return table


def draw_matrices(outcome: OutcomeSummary) -> Group:
    """All matrices, with one empty line between them."""
    first, *others = map(draw_matrix, make_matrices([outcome]))
    for table in others:
        table.show_edge = False
    return Group(first, *(Padding(table, (0, 0, 1, 1), expand=False) for table in others))


def draw_matrix(matrix: Matrix) -> Table:
    table = make_table(matrix.contract, *matrix.kinds)
    for backend, pairs in matrix.rows:
        table.add_row(backend, *map(draw_cell, pairs))
    return table


def draw_cell(pair: PairSummary | None) -> Text:
    return Text("–", "dim") if pair is None else Text(pair.cell, STYLES[pair.verdict])


def make_details(pairs: Sequence[PairSummary], width: int = WIDE) -> Table:
    """One row for each pair: how much was run, and how far it reached. On a terminal that
    is narrower than `WIDE` only the two columns that matter most."""
    names = DETAILS if width >= WIDE else ("programs", "cells")
    table = make_table("what was run", *names)
    for pair in pairs:
        details = {
            "programs": str(pair.programs),
            "steps": shorten_number(pair.steps),
            "cells": f"{pair.reached}/{pair.reachable}",
            "margin": pair.margin,
            "known": str(pair.known or "–"),
        }
        table.add_row(pair.name, *(details[name] for name in names))
    return table


def shorten_number(number: int) -> str:
    return f"{number / 1000:.0f}k" if number >= 10_000 else str(number)


def list_empty_cells(outcome: OutcomeSummary) -> Iterator[Text]:
    """The cells that generation never reached, in a few lines."""
    run = [pair for pair in outcome.pairs if pair.programs and not pair.missing]
    pairs = [pair for pair in run if pair.missed]
    if len(pairs) > MOST_LISTED:
        missed = sum(pair.missed for pair in pairs)
        words = f"{len(pairs)} pairs have {missed:,} cells that were never reached"
        yield Text(f"{words}; --json lists them", "yellow")
        return
    for pair in pairs:
        groups = [f"{state} × {shorten_list(ops)}" for state, ops in pair.empty.items()]
        text = f"{pair.name}: {pair.missed} of {pair.reachable} cells never reached: "
        yield Text(text + shorten_list(groups, "; "), "yellow")


def print_failure(console: Console, failure: Failure, programs: int = 0) -> None:
    """A failure in words, and the line that reproduces it.

    Args:
        console: where it is printed.
        failure: is printed.
        programs: how many have shown its signature; 0 if that is not known.
    """
    seen = failure.divergence
    head = Text(f"\n✗ {failure.backend}", "bold red")
    console.print(head.append(f" {failure.signature}", "not bold default"))
    words = seen.step, seen.what, seen.message
    for line in (
        *describe_failure(failure.program, *words),
        *tell_tokens(failure.program, seen),
    ):
        console.print(Text(indent(line, console.width)), soft_wrap=True)
    for line in list_remarks(programs, failure.flaky, failure.answers):
        console.print(Text(indent(line, console.width), "yellow"))
    if failure.unsaved:
        why = f"its file could not be written ({failure.unsaved}); outcome.json has it"
        console.print(Text(indent(why, console.width), "bold yellow"))
    else:
        console.print(Text(f"  {failure.replay}", "bold"), soft_wrap=True)


def print_failures(console: Console, outcome: Outcome) -> None:
    for pair in outcome.pairs:
        counts = pair.count_signatures()
        for failure in pair.failures:
            print_failure(console, failure, counts[failure.signature])
    if len(outcome.failures) > MOST_LISTED:
        print_causes(console, outcome.failures)


def print_causes(console: Console, failures: Sequence[Failure]) -> None:
    """A line for each of several failures, by their likely causes."""
    groups = group_failures(
        failures,
        [get_evidence(one.program, one.divergence) for one in failures],
        [failure.backend for failure in failures],
        [failure.cause or None for failure in failures],
    )
    causes = f"{len(groups)} likely cause" + "s" * (len(groups) > 1)
    console.print(Text(f"\n{len(failures)} failures, {causes}:", "bold"))
    for group in groups:
        first = group.failures[0]
        words = f"{first.backend}: {group.sentence or first.signature}"
        console.print(Text(indent(words, console.width)), soft_wrap=True)
        for one in group.failures:
            seen = one.divergence
            line = clean(describe_line(one.program, seen.step, seen.message))
            console.print(Text(indent(f"  {line}", console.width)), soft_wrap=True)


def indent(line: str, width: int) -> str:
    """The line of a report, its further lines further to the right."""
    wrapped = TextWrapper(
        width,
        initial_indent="  ",
        subsequent_indent=" " * 6,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.fill(line)


def print_notes(console: Console, outcome: OutcomeSummary, verb: str = "checked") -> None:
    for note in list_notes(outcome):
        text = Text(note.format(verb), STYLES.get(note.sort, "yellow"))
        console.print(text, soft_wrap=note.sort == "saved")  # paths stay whole


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Everything that a check has found."""
    summary = summarize(outcome)
    print_failures(console, outcome)
    told = summary.pairs
    if len(told) > MOST_DETAILED:
        told = [pair for pair in told if pair.verdict != "agrees"][:MOST_DETAILED]
    if told:
        console.print(make_details(told, console.width))
    if outcome.pairs:
        console.print(draw_matrices(summary))
    for line in list_empty_cells(summary):
        console.print(line)
    print_notes(console, summary)
    text = (
        f"{format_verdict([summary], len(outcome.failures))}: {format_amount([summary])}"
    )
    console.print(Text(text, "bold red" if summary.exit_status else "green"))


def print_replayed(console: Console, what: str, status: str, words: str = "") -> None:
    styles = {"FIXED": "green", "AGREES": "green", "ERROR": "bold yellow"}
    style = styles.get(status, "bold red")
    said = make_printable(f" {what}: {words}" if words else f" {what}")
    line = Text.assemble((status, style), said)
    console.print(line, soft_wrap=True)


# --- running work -----------------------------------------------------------------------


QUIET_SECONDS = 15.0
"""When progress is first printed where nothing can be redrawn; then after twice as long,
and so on up to `QUIETEST_SECONDS`."""

QUIETEST_SECONDS = 240.0

DRAWN_SECONDS = 0.2

MOST_SHOWN = 4
"""Pairs that are running, in a row of their own."""

T = TypeVar("T")


class Progress(Generic[T]):
    """Shows running work: redrawn on a terminal, else a line now and then.

    draw: what a terminal shows; say: the line. If the terminal is gone, the work goes on.
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
            except BaseException:  # a signal, once the cursor is hidden
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
    """How fast programs ran of late. Some kinds take ten times as long as others, and
    importing backends comes first: the rate of the whole run says less."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def estimate(self, seconds: float, programs: int, rest: int) -> float:
        """Seconds until `rest` programs more have run.

        Args:
            seconds: since the beginning; no less than at the call before.
            programs: that have run until then.
            rest: programs that are left.
        """
        self.seen.append((seconds, programs))
        while len(self.seen) > 2 and self.seen[1][0] < seconds - RECENT_SECONDS:
            self.seen.popleft()
        begin, before = self.seen[0]
        if programs == before:  # slow programs: nothing ended of late
            return rest * seconds / programs
        return rest * (seconds - begin) / (programs - before)


def draw_progress(pace: Pace, outcome: Outcome) -> RenderableType:
    """A running check, on a terminal. What matters most stands first: the end of what is
    higher than the terminal is cut off."""
    status = get_check_status(pace, outcome)
    if not outcome.pairs:
        return status
    matrices = draw_matrices(summarize(outcome))
    return Group(status, make_running(outcome), matrices)


def make_running(outcome: Outcome) -> Table:
    """The pairs that run now: how far each is, and how fast on one core."""
    table = make_table("running", "programs", "steps/s", "cells", is_folded=True)
    for pair in [pair for pair in outcome.pairs if pair.running][:MOST_SHOWN]:
        programs, steps = pair.get_progress()
        rate = f"{steps / pair.get_seconds():,.0f}" if pair.get_seconds() else "–"
        cells = f"{pair.count_reached()}/{len(pair.cells)}"
        table.add_row(pair.name, f"{programs}/{pair.wanted}", rate, cells)
    return table


def get_check_status(pace: Pace, outcome: Outcome) -> Text:
    """The progress of a running check, its rate, and the time left."""
    seconds = time.monotonic() - outcome.started
    programs = sum(pair.get_progress()[0] for pair in outcome.pairs)
    steps = sum(pair.get_progress()[1] for pair in outcome.pairs)
    wanted = sum(pair.wanted for pair in outcome.pairs)
    if not programs:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    reached = sum(map(Pair.count_reached, outcome.pairs))
    cells = sum(len(pair.cells) for pair in outcome.pairs)
    left = pace.estimate(seconds, programs, wanted - programs)
    limit = outcome.settings.seconds
    if limit is not None:
        left = max(0.0, min(left, limit - seconds))
    return Text(
        f"{seconds:.0f} s: {programs:,} of {wanted:,} programs,"
        f" {steps / seconds:,.0f} steps/s, {reached:,} of {cells:,} cells,"
        f" {len(outcome.failures)} failures, about {left:.0f} s left",
        "dim",
    )
