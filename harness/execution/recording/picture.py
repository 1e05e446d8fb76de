"""Defines the picture of a step: the tokens that the reference and the backend hold, and
the tokens that each row sees.

A picture consists of text, numbers and marks of bounded size, and can be saved as JSON.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

SEEN, HIDDEN, MISSING, EXTRA = "s", "n", "m", "x"
"""The squares of a row. SEEN: visible, as expected. HIDDEN: not visible, as expected.
MISSING: expected, but not visible. EXTRA: visible, but not expected."""

WRONG = frozenset({MISSING, EXTRA})


@dataclass(frozen=True)
class Bounds:
    """The limits of a drawing.

    Attributes:
        first, last: the number of steps at the beginning and at the end of a program.
        rows, columns: the number of rows and columns of a grid.
        squares: the number of squares of all agreeing steps, counted from the last step.
        parts: the number of caches, layers or rows of a batch side by side.
    """

    first: int = 4
    last: int = 28
    rows: int = 16
    columns: int = 32
    squares: int = 600
    parts: int = 4


@dataclass(frozen=True)
class Chip:
    """A token at its position, or other content.

    Attributes:
        label: a few letters.
        words: a full description.
        mark: "" for a correct token; "old" for a token that need not be kept; "gone" for
            a token that the reference does not hold; "odd" for content that is not a
            token; "unread" for content that no row sees; "absent" for a token that the
            backend did not return; "gap" for omitted tokens.
    """

    label: str
    words: str
    tag: int | None = None
    position: int | None = None
    sequences: tuple[int, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Row:
    """One row of a grid.

    Attributes:
        squares: one letter for each column, see SEEN; " " in a gap.
    """

    label: str
    squares: str

    @property
    def is_wrong(self) -> bool:
        return bool(WRONG & {*self.squares})


@dataclass(frozen=True)
class Grid:
    """The columns that each row sees, for the reference and the backend.

    Attributes:
        columns: the columns in the backend's order; for a state, and without a backend,
            in the order of the tokens. Tokens that the backend did not return are last.
        is_layout: whether the columns are in the backend's order.
        wrong: the number of differing rows, including omitted rows.
    """

    title: str
    columns: tuple[Chip, ...]
    rows: tuple[Row, ...]
    is_layout: bool
    wrong: int = 0
    rows_left_out: int = 0
    columns_left_out: int = 0

    @property
    def twice(self) -> frozenset[int]:
        """The tags that occur in several columns; these columns are labelled with
        positions."""
        times = Counter(chip.tag for chip in self.columns if chip.tag is not None)
        return frozenset(tag for tag, count in times.items() if count > 1)

    @property
    def returned(self) -> tuple[Chip, ...]:
        """The columns that the backend returned."""
        return tuple(chip for chip in self.columns if chip.mark != "absent")

    @property
    def left_out(self) -> str:
        """Describes the omitted rows and columns; empty if none are omitted."""
        counts = {"row": self.rows_left_out, "column": self.columns_left_out}
        counted = [f"{n} {noun}" + "s" * (n > 1) for noun, n in counts.items() if n]
        if not counted:
            return ""
        suffix = f"; {self.wrong} rows differ in all" if self.wrong > 1 else ""
        return f"left out: {' and '.join(counted)}{suffix}"


@dataclass(frozen=True)
class Fact:
    """A number or short text in an answer.

    Attributes:
        got: the backend's value; None if the backend did not answer.
    """

    name: str
    expected: str
    got: str | None
    differs: bool


@dataclass(frozen=True)
class Part:
    """A cache, a layer, or a row of a batch: the reference's content, the grids, and the
    facts about this cache, layer or row."""

    title: str
    held: tuple[Chip, ...]
    held_left_out: int
    grids: tuple[Grid, ...]
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Step:
    """An operation, as the reference and the backend ran it.

    Attributes:
        skipped: the reason why the operation did not run.
        outcome: the result as text; see `programs.words`.
        is_drawn: whether the step has a picture.
        parts_left_out: the number of omitted caches.
        answered: whether the backend answered.
    """

    number: int
    words: str
    skipped: str | None = None
    outcome: str = ""
    facts: tuple[Fact, ...] = ()
    parts: tuple[Part, ...] = ()
    parts_left_out: int = 0
    is_drawn: bool = True
    answered: bool = True

    @property
    def left_out(self) -> str:
        """Describes the omitted caches; empty if none are omitted."""
        suffix = self.parts_left_out
        if not suffix:
            return ""
        return f"{suffix} more cache{' is' if suffix == 1 else 's are'} not shown"

    def count_squares(self) -> int:
        """Counts the squares to draw."""
        return sum(
            len(drawn.held)
            + sum(len(grid.columns) * (1 + len(grid.rows)) for grid in drawn.grids)
            for drawn in self.parts
        )

    @property
    def is_wrong(self) -> bool:
        """Whether a fact or a grid of the step differs."""
        grids = (grid for drawn in self.parts for grid in drawn.grids)
        facts = chain(self.facts, *(drawn.facts for drawn in self.parts))
        return any(fact.differs for fact in facts) or any(g.wrong for g in grids)
