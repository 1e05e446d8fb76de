"""Draws long programs, and some that begin with a changed program of a corpus.

A corpus has the shortest programs that reach each cell. Programs follow from the seed and
the corpus that a slice starts from: not from the worker, the time, or other slices. What
a slice keeps depends on what diverges, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Cell, Op, Source
from lockstep.harness.programs.corpus import Corpus, find_cells
from lockstep.harness.programs.generate.drawer import Draft, Drawer, Script
from lockstep.harness.programs.program import Program, breaks_usage

CHANGED = 8
"""One program in CHANGED begins with a changed program of the corpus."""

SOME = 3
"""Of so many cells of the corpus, the one that was met least is chosen."""

OTHER_CONFIG = 4
"""One changed program in OTHER_CONFIG has another config."""

MOST_CHANGED = 4
"""Operations that are dropped or repeated, at most."""

# --- changes ----------------------------------------------------------------------------


def drop(source: Source, script: Script, other: Script) -> Script:
    """Leaves out a few operations."""
    begin, end = choose_part(source, script)
    return [*script[:begin], *script[end:]]


def repeat(source: Source, script: Script, other: Script) -> Script:
    """Does a few operations twice."""
    begin, end = choose_part(source, script)
    return [*script[:end], *script[begin:]]


def redraw(source: Source, script: Script, other: Script) -> Script:
    """Draws the fields of one operation again."""
    place = source.below(len(script))
    op = script[place]
    name = op if isinstance(op, str) else str(op["op"])
    return [*script[:place], name, *script[place + 1 :]]


def splice(source: Source, script: Script, other: Script) -> Script:
    """Goes on with the end of another program."""
    return [*script, *other[source.below(len(other)) :]]


def keep(source: Source, script: Script, other: Script) -> Script:
    """Changes nothing: what follows is drawn anew."""
    return script


CHANGES: Sequence[Callable[[Source, Script, Script], Script]] = (
    *(keep, drop, repeat, redraw, splice),
)


def choose_part(source: Source, script: Script) -> tuple[int, int]:
    """Chooses a few neighbours: where they begin, and where they end."""
    begin = source.below(len(script))
    return begin, min(len(script), begin + source.between(1, MOST_CHANGED))


# --- the drawer -------------------------------------------------------------------------


class GuidedDrawer(Drawer):
    """A drawer of long programs that starts from a corpus, and adds to it.

    Attributes:
        lengths: longer than those of a plain one: a mistake is found in as many steps, so
            in fewer programs, each of which takes a while to begin.
        keeps: whether it was given a corpus, be it empty; the rest is of use then.
        met: how often each cell was met.
        given: the corpus that it starts from.
        reached: the same, and the beginnings of its own programs that agreed.
        fresh: cell → operations after which the last program has reached it.
    """

    lengths = 36, 84

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.keeps = False
        self.met: Counter[Cell] = Counter()
        self.given, self.reached = Corpus(), Corpus()
        self.fresh: dict[Cell, int] = {}

    def start_from(self, programs: Sequence[Program]) -> None:
        self.keeps = True
        for program in programs:
            self.given.add(program, find_cells(program))
        self.reached.programs.update(self.given.programs)

    def learn(self, program: Program, agreed: int) -> None:
        """Keeps no beginning that diverges: what is made from it would show the same."""
        cells = {cell: length for cell, length in self.fresh.items() if length <= agreed}
        self.reached.add_beginnings(program, cells)

    def list_kept(self) -> list[Program]:
        given = {program.digest() for program in self.given.list_programs()}
        kept = self.reached.list_programs()
        return [program for program in kept if program.digest() not in given]

    def draw(self, source: Source) -> Program:
        """Draws a program; one that begins as a program of the corpus depends on the
        earlier ones, too."""
        self.fresh = {}
        if not self.given.programs or source.below(CHANGED):
            return self.draw_behind(source, self.draw_config(source))
        program = self.draw_changed(source)
        if self.declared.refuses or not breaks_usage(program):
            return program
        self.fresh = {}
        return self.draw_behind(source, program.config)

    def draw_changed(self, source: Source) -> Program:
        """Draws a program that begins with a changed one of the corpus."""
        program, other = self.choose_program(source), self.choose_program(source)
        script = source.pick(CHANGES)(source, program.ops, other.ops)
        is_other = source.below(OTHER_CONFIG) == 0
        config = self.draw_config(source) if is_other else program.config
        return self.draw_behind(source, config, script)

    def choose_program(self, source: Source) -> Program:
        """Chooses a program of the corpus, rather one that reaches a rare cell."""
        cells = list(self.given.programs)
        some = [source.pick(cells) for _ in range(SOME)]
        return self.given.programs[min(some, key=lambda cell: self.met[cell])]

    def add(self, draft: Draft, op: Op) -> None:
        if not self.keeps:
            super().add(draft, op)
            return
        cells = [(state, op["op"]) for state in self.rules.get_states(op, draft.model)]
        self.met.update(cells)
        super().add(draft, op)
        for cell in cells:
            self.fresh.setdefault(cell, len(draft.ops))
