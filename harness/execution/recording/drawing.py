"""Draws the picture of a step from the answers of the reference and the backend."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from lockstep.harness.contracts.operation import Answer, Held, HeldToken
from lockstep.harness.core.errors import clean
from lockstep.harness.execution.compare import (
    COLUMNS,
    LAYERS,
    PARTS,
    ROWS,
    STATES,
    STORED,
    TAGS,
    find_difference,
    is_equal,
    join,
    say,
)
from lockstep.harness.execution.recording.picture import (
    EXTRA,
    HIDDEN,
    MISSING,
    SEEN,
    WRONG,
    Bounds,
    Chip,
    Fact,
    Grid,
    Part,
    Row,
    Step,
)

# --- a grid of expected and visible tokens ----------------------------------------------


Token = Any
"""A tag, (position, tag), or a text for a column that holds no token; see `Column` of
`harness.contracts.system`."""

UNREAD = frozenset({"what no row sees", "zeros"})
"""The texts for columns that need not hold anything."""

PADDING = re.compile(r"pad (\d+)\.(\d+)")
"""The text for padding, as in `harness.contracts.batched.system`."""

GAP = Chip("⋯", "omitted columns", mark="gap")

MARKS = {
    "gone": "not held by the reference",
    "old": "before the window, need not be kept",
    "absent": "did not come back",
}
"""The mark of a chip → its meaning."""


@dataclass(frozen=True)
class Known:
    """The known facts about tokens.

    Attributes:
        places: tag → where the reference holds the token now, in the drawn cache.
        elsewhere: tag → where the reference holds the token now, in any cache.
        born: tag → the step in which the token was written.
    """

    places: Mapping[int, HeldToken]
    elsewhere: Mapping[int, HeldToken]
    born: Mapping[int, int]

    def within(self, tokens: Sequence[HeldToken]) -> Known:
        """Returns the same facts for the cache that holds `tokens`."""
        return replace(self, places={token.tag: token for token in tokens})

    def make_chip(self, token: Token, mark: str = "") -> Chip:
        """Makes the chip of a column that holds `token`."""
        if isinstance(token, str):
            return make_odd_chip(token)
        position, tag = token if isinstance(token, tuple) else (None, token)
        held, known = self.places.get(tag), self.elsewhere.get(tag)
        if not mark:
            mark = "gone" if held is None else "old" if held.is_old else ""
        if known := held or known:
            position = known.position if position is None else position
        return self.make(tag, position, known.sequences if known else (), mark)

    def make(
        self, tag: int, position: int | None, sequences: Sequence[int], mark: str
    ) -> Chip:
        phrases = [f"token {tag}"]
        if position is not None:
            phrases.append(f"position {position}")
        if sequences:
            noun = "sequence" if len(sequences) == 1 else "sequences"
            phrases.append(f"{noun} {', '.join(map(str, sequences))}")
        if tag in self.born:
            phrases.append(f"written in step {self.born[tag]}")
        if mark in MARKS:
            phrases.append(MARKS[mark])
        return Chip(str(tag), ", ".join(phrases), tag, position, tuple(sequences), mark)


def make_odd_chip(text: str) -> Chip:
    """Makes the chip of a column without a token."""
    if text in UNREAD:
        return Chip("·", text, mark="unread")
    if padding := PADDING.fullmatch(text):
        row, column = padding.groups()
        return Chip(text, f"padding, column {column} of row {row}", mark="pad")
    return Chip("!", text, mark="odd")


@dataclass(frozen=True)
class Sights:
    """The tokens that the rows of one answer see.

    Attributes:
        wanted: the tokens that each row should see.
        got: the tokens that each row of the backend sees; None if it did not answer.
        columns: the columns that the backend returned, or None.
        seen: the numbers of the columns that each row sees, or None.
        label: describes a row.
    """

    wanted: Sequence[Sequence[Token]]
    got: Sequence[Sequence[Token]] | None
    columns: Sequence[Token] | None
    seen: Sequence[Sequence[int]] | None
    label: Callable[[int], str]

    def list_wrong(self) -> list[int]:
        """Lists the rows that differ. The order of columns does not matter."""
        if self.got is None:
            return []
        pairs = enumerate(zip_longest(self.wanted, self.got, fillvalue=()))
        return [row for row, (a, b) in pairs if a != b and Counter(a) != Counter(b)]


def draw_grid(title: str, sights: Sights, known: Known, bounds: Bounds) -> Grid:
    """Draws a grid. If rows or columns must be left out, differences are kept."""
    wrong = sights.list_wrong()
    total = max(len(sights.wanted), len(sights.got or ()))
    rows = choose(range(total), wrong, bounds.rows)
    wanted = {row: get_row(sights.wanted, row) for row in rows}
    columns, seen = get_columns(sights, rows)
    absent: list[Token] = []
    if sights.got is not None:
        needed = Counter(list_tokens(wanted.values()))
        absent = list((needed - Counter(columns)).elements())
    tokens = [*columns, *absent]
    squares = {row: get_squares(wanted[row], tokens, seen[row]) for row in rows}
    columns_of_squares = enumerate(zip(*squares.values(), strict=True))
    marked = [at for at, column in columns_of_squares if WRONG & {*column}]
    shown = choose(range(len(tokens)), marked, bounds.columns)
    breaks = [at for at in shown if at and at - 1 not in shown]

    def insert_gaps(items: Iterable[Any], gap: Any) -> Iterator[Any]:
        for at, drawn in zip(shown, items, strict=True):
            if at in breaks:
                yield gap
            yield drawn

    def draw_row(row: int) -> Row:
        squares_shown = [squares[row][at] for at in shown]
        return Row(sights.label(row), "".join(insert_gaps(squares_shown, " ")))

    marks = ["absent" if at >= len(columns) else "" for at in shown]
    chips = [
        known.make_chip(tokens[at], mark) for at, mark in zip(shown, marks, strict=True)
    ]
    return Grid(
        title,
        tuple(insert_gaps(chips, GAP)),
        tuple(map(draw_row, rows)),
        is_layout=sights.columns is not None and sights.got is not None,
        wrong=len(wrong),
        rows_left_out=total - len(rows),
        columns_left_out=len(tokens) - len(shown),
    )


def get_row(rows: Sequence[Sequence[Any]], row: int) -> Sequence[Any]:
    return rows[row] if row < len(rows) else ()


def get_columns(
    sights: Sights, rows: Sequence[int]
) -> tuple[Sequence[Token], Mapping[int, Sequence[int]]]:
    """Returns the columns, and for each row the numbers of the columns that it sees."""
    shown = sights.wanted if sights.got is None else sights.got
    tokens = {row: get_row(shown, row) for row in rows}
    columns = None if sights.got is None else sights.columns
    if columns is not None and sights.seen is not None:
        return columns, {row: get_row(sights.seen, row) for row in rows}
    if columns is None:
        columns = list_tokens(tokens.values())
    return columns, {row: find_columns(columns, tokens[row]) for row in rows}


def list_tokens(rows: Iterable[Sequence[Token]]) -> list[Token]:
    """Lists the tokens that at least one row sees, in order, and then the descriptions
    of columns without a token. A token that a row sees twice is listed twice."""
    most: Counter[Token] = Counter()
    for row in rows:
        most |= Counter(row)
    return sorted(most.elements(), key=get_order)


def get_order(token: Token) -> Any:
    return isinstance(token, str), (token,) if isinstance(token, int) else token


def find_columns(columns: Sequence[Token], row: Sequence[Token]) -> list[int]:
    """Returns the first columns that hold the tokens that a row sees."""
    wanted = Counter(row)
    indices = []
    for at, token in enumerate(columns):
        if wanted[token] > 0:
            wanted[token] -= 1
            indices.append(at)
    return indices


def get_squares(
    wanted: Sequence[Token], columns: Sequence[Token], seen: Sequence[int]
) -> list[str]:
    """Returns the squares of a row, one for each column."""
    unseen = Counter(wanted)
    squares = [HIDDEN] * len(columns)
    for at in seen:
        squares[at] = SEEN if unseen[columns[at]] > 0 else EXTRA
        unseen[columns[at]] -= 1
    for at, token in enumerate(columns):
        if squares[at] == HIDDEN and unseen[token] > 0:
            squares[at] = MISSING
            unseen[token] -= 1
    return squares


def choose(indices: Sequence[int], first: Sequence[int], most: int) -> list[int]:
    """Chooses at most `most` of the indices, in order: first the indices in `first`, then
    their neighbours, then the last indices."""
    if len(indices) <= most:
        return list(indices)
    neighbours = [at + step for step in (-1, 1, -2, 2) for at in first[:most]]
    candidates = (*first, *neighbours, *reversed(indices))
    chosen = dict.fromkeys(at for at in candidates if at in indices)
    return sorted([*chosen][:most])


# --- a step -----------------------------------------------------------------------------


MAX_TEXT = 160
"""The maximum length of a text in a picture."""

Told = Mapping[str, Sequence[tuple[str, str]]]
"""See `System.tell_held`."""


@dataclass
class Contents:
    """The contents of an answer, by the number of the cache, layer or row.

    Attributes:
        facts: number → facts; the number None has the facts about the whole answer.
        sights: number → the visible tokens, with titles.
    """

    facts: dict[int | None, list[Fact]] = field(default_factory=lambda: defaultdict(list))
    sights: dict[int, list[tuple[str, Sights]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def collect(
        self,
        expected: Answer,
        got: Answer | None,
        describe: Callable[[int], str],
        number: int | None = None,
        title: str = "",
    ) -> int:
        """Collects the contents of two answers.

        Args:
            expected: the reference's answer.
            got: the backend's answer; None if it gave none.
            describe: describes a row.
            number: the number of the cache, layer or row that the answers are about; None
                for the whole answer. Nested caches, layers and rows are numbered
                consecutively.
            title: the title of the visible tokens.

        Returns:
            The next number.
        """
        facts = self.facts[number]
        if got is not None and "error" in got and "error" not in expected:
            message = f"{got['error']} error: {got.get('why', '')}"
            facts.append(Fact("error", "none", clean(message, MAX_TEXT), True))
            got = None  # the answer has no other fields
        index = number or 0
        after = index + 1
        for name, wanted in expected.items():
            value = None if got is None else got.get(name)
            if name == PARTS:
                answers, after = value if isinstance(value, list) else [], index
                for member, answer in zip_longest(wanted, answers[: len(wanted)]):
                    after = self.collect(member, answer, describe, after, title)
            elif name in (ROWS, TAGS) or (name == STORED and isinstance(wanted, list)):
                sights = make_sights(name, wanted, got, describe)
                self.sights[index].append((title, sights))
            elif name == STATES:
                facts += compare_states(wanted, value, got is not None)
            else:
                text = shorten(value) if got is not None else None
                differs = got is not None and not is_equal(value, wanted)
                fact = Fact(name.replace("_", " "), shorten(wanted), text, differs)
                facts.append(fact)
        for layer_number, layer in enumerate((got or {}).get(LAYERS, ()), 1):
            if find_difference(expected, layer, describe):
                self.collect(expected, layer, describe, number, f"layer {layer_number}")
        return after


def draw_step(
    step: Step,
    answers: tuple[Answer, Answer | None],
    contents: Sequence[Held],
    known: Known,
    describe: Callable[[int], str],
    bounds: Bounds,
    reports: Told = MappingProxyType({}),
) -> Step:
    """Returns the step with its picture.

    Args:
        step: the step without a picture.
        answers: the expected answer, and the backend's answer or None.
        contents: the content of the reference; see `Contract.open_model`.
        known: the known facts about tokens.
        describe: describes a row.
        bounds: the limits of the picture.
        reports: see `System.tell_held`.
    """
    answered = Contents()
    answered.collect(*answers, describe)
    grids = {
        number: [
            draw_grid(title, sights, known.within(contents[number][1]), bounds)
            for title, sights in pairs
        ]
        for number, pairs in answered.sights.items()
    }
    wrong = {number for number, drawn in grids.items() if any(g.wrong for g in drawn)}
    for number, facts in answered.facts.items():
        if number is not None and any(fact.differs for fact in facts):
            wrong.add(number)
    members = []
    for number in choose(range(len(contents)), sorted(wrong) or [0], bounds.parts):
        title, tokens = contents[number]
        shown = tokens[-bounds.columns :]  # the latest tokens, which the step changes
        chips = [
            known.make(x.tag, x.position, x.sequences, "old" if x.is_old else "")
            for x in shown
        ]
        facts = list(answered.facts.get(number, ()))
        for name, text in reports.get(title, ()):
            text = clean(text, MAX_TEXT)
            facts.append(Fact(name, text, text, False))
        left_out, drawn = len(tokens) - len(shown), tuple(grids.get(number, ()))
        members.append(Part(title, tuple(chips), left_out, drawn, tuple(facts)))
    return replace(
        step,
        facts=tuple(answered.facts[None]),
        parts=tuple(members),
        parts_left_out=len(contents) - len(members),
    )


def make_sights(
    name: str, wanted: Any, got: Answer | None, describe: Callable[[int], str]
) -> Sights:
    """Collects the visible tokens from one field of both answers. If the field lists held
    tokens instead, they become a single row."""
    if name != ROWS:
        wanted, describe = [wanted], lambda row: "holds"
    if got is None:
        return Sights(wanted, None, None, None, describe)
    value = got.get(name) or []
    rows = value if name == ROWS else [value]
    return Sights(wanted, rows, got.get(COLUMNS), got.get("seen"), describe)


def compare_states(wanted: Any, value: Any, answered: bool) -> Iterator[Fact]:
    """Compares the tokens that each state has read, in order."""
    pairs = zip_longest(wanted, value or (), fillvalue=())
    for number, (expected, read) in enumerate(pairs):
        differs = answered and list(expected) != list(read)
        text = join(read) or "nothing" if answered else None
        yield Fact(f"state {number}", join(expected) or "nothing", text, differs)


def shorten(value: Any) -> str:
    """Describes a value or a list of values."""
    if isinstance(value, list | tuple):
        return clean(", ".join(map(say, value)), MAX_TEXT) or "nothing"
    return clean(str(value) if isinstance(value, Mapping) else say(value), MAX_TEXT)
