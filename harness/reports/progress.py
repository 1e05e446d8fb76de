"""The display of running work on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.reports.console import draw_matrices, make_table
from lockstep.harness.reports.model import summarize

QUIET_SECONDS = 15.0
"""How often progress is printed where nothing can be redrawn."""

DRAWN_SECONDS = 0.2

MOST_SHOWN = 4
"""Pairs that are running, in a row of their own."""

T = TypeVar("T")


class Progress(Generic[T]):
    """Shows running work: redrawn on a terminal, else a line now and then.

    draw: what a terminal shows; say: the line.
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
        self.printed = time.monotonic()
        self.drawn = 0.0

    def __enter__(self) -> Progress[T]:
        if self.redraws:
            self.live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.redraws:
            self.live.__exit__(None, None, None)

    def show(self, work: T) -> None:
        now = time.monotonic()
        if self.redraws:
            if now - self.drawn > DRAWN_SECONDS:
                self.drawn = now
                self.live.update(self.draw(work), refresh=True)
        elif now - self.printed > QUIET_SECONDS:
            self.printed = now
            self.console.print(self.say(work))


def draw_progress(outcome: Outcome) -> RenderableType:
    """A running check, on a terminal. What matters most stands first: the end of what is
    higher than the terminal is cut off."""
    if not outcome.pairs:
        return get_check_status(outcome)
    matrices = draw_matrices(summarize(outcome))
    return Group(get_check_status(outcome), make_running(outcome), matrices)


def make_running(outcome: Outcome) -> Table:
    """The pairs that run now: how far each is, and how fast on one core."""
    table = make_table("running", "programs", "steps/s", "cells", is_folded=True)
    for pair in [pair for pair in outcome.pairs if pair.running][:MOST_SHOWN]:
        programs, steps = pair.get_progress()
        rate = f"{steps / pair.get_seconds():,.0f}" if pair.get_seconds() else "–"
        cells = f"{pair.count_reached()}/{len(pair.cells)}"
        table.add_row(pair.name, f"{programs}/{pair.wanted}", rate, cells)
    return table


def get_check_status(outcome: Outcome) -> Text:
    """The progress of a running check, its rate, and the time left."""
    seconds = time.monotonic() - outcome.started
    programs = sum(pair.get_progress()[0] for pair in outcome.pairs)
    steps = sum(pair.get_progress()[1] for pair in outcome.pairs)
    wanted = sum(pair.wanted for pair in outcome.pairs)
    if not programs:
        return Text(f"{seconds:.0f} s: importing backends", "dim")
    reached = sum(map(Pair.count_reached, outcome.pairs))
    cells = sum(len(pair.cells) for pair in outcome.pairs)
    left = estimate_left(outcome, seconds, (wanted - programs) / programs)
    return Text(
        f"{seconds:.0f} s: {programs:,} of {wanted:,} programs,"
        f" {steps / seconds:,.0f} steps/s, {reached:,} of {cells:,} cells,"
        f" {len(outcome.failures)} failures, about {left:.0f} s left",
        "dim",
    )


def estimate_left(outcome: Outcome, seconds: float, rest: float) -> float:
    """Seconds until all is done, or until time is up. rest: what is left, as a multiple
    of what was done in `seconds`."""
    limit = outcome.settings.seconds
    until = seconds * rest
    return until if limit is None else max(0.0, min(until, limit - seconds))
