"""From the answers of both sides to the picture of a step."""

from __future__ import annotations

import re
from collections import Counter
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

# --- a grid: what rows should see, and do see -------------------------------------------


Token = Any
"""A tag, (position, tag), or words for what is neither; see `Column` of
`harness.contracts.system`."""

UNREAD = frozenset({"what no row sees", "zeros"})
"""Words for what stands in columns that need not hold anything."""

GAP = Chip("⋯", "columns that are left out", mark="gap")


@dataclass(frozen=True)
class Known:
    """The facts that are known of tokens.

    places: where the reference holds them now, in the cache that is drawn. elsewhere: in
    any. born: the step in which each was written.
    """

    places: Mapping[int, HeldToken]
    elsewhere: Mapping[int, HeldToken]
    born: Mapping[int, int]

    def within(self, places: Sequence[HeldToken]) -> Known:
        """The same for a cache that holds these."""
        return replace(self, places={place.tag: place for place in places})

    def make_chip(self, token: Token, mark: str = "") -> Chip:
        """A column in which `token` stands."""
        if isinstance(token, str):
            return make_odd_chip(token)
        position, tag = token if isinstance(token, tuple) else (None, token)
        held_token = self.places.get(tag)
        token_place = held_token or self.elsewhere.get(tag)
        if not mark:
            mark = "gone" if held_token is None else "old" if held_token.is_old else ""
        if position is None and token_place is not None:
            position = token_place.position
        sequences = token_place.sequences if token_place is not None else ()
        description = self.say(tag, position, sequences, mark)
        return Chip(str(tag), description, tag, position, sequences, mark)

    def say(
        self, tag: int, position: int | None, sequences: Sequence[int], mark: str
    ) -> str:
        phrases = [f"token {tag}"]
        if position is not None:
            phrases.append(f"position {position}")
        if sequences:
            word = "sequence" if len(sequences) == 1 else "sequences"
            phrases.append(f"{word} {', '.join(map(str, sequences))}")
        if tag in self.born:
            phrases.append(f"written in step {self.born[tag]}")
        if mark in SAYINGS:
            phrases.append(SAYINGS[mark])
        return ", ".join(phrases)


def make_odd_chip(text: str) -> Chip:
    """A column in which no token stands."""
    if text in UNREAD:
        return Chip("·", text, mark="unread")
    if padding := PADDING.fullmatch(text):
        row, column = padding.groups()
        return Chip(text, f"padding, column {column} of row {row}", mark="pad")
    return Chip("!", text, mark="odd")


PADDING = re.compile(r"pad (\d+)\.(\d+)")
"""Words for padding, as `harness.contracts.batched.system` has them."""

SAYINGS = {
    "gone": "not held by the reference",
    "old": "before the window, need not be kept",
    "absent": "did not come back",
}


@dataclass(frozen=True)
class Sights:
    """The columns that the rows of one answer see.

    wanted: by the reference. got: by the backend; None if it did not answer. columns,
    seen: what it returned, and which columns each row sees; None where there is no such
    thing. label: a row in words.
    """

    wanted: Sequence[Sequence[Token]]
    got: Sequence[Sequence[Token]] | None
    columns: Sequence[Token] | None
    seen: Sequence[Sequence[int]] | None
    label: Callable[[int], str]

    def list_wrong(self) -> list[int]:
        """The rows that differ: as multisets, for the order of columns means nothing."""
        if self.got is None:
            return []
        pairs = zip_longest(self.wanted, self.got, fillvalue=())
        return [
            row
            for row, (wanted, seen) in enumerate(pairs)
            if wanted != seen and Counter(wanted) != Counter(seen)
        ]

    def count_rows(self) -> int:
        return max(len(self.wanted), len(self.got or ()))


def draw_grid(title: str, sights: Sights, tokens_known: Known, bounds: Bounds) -> Grid:
    """The grid, with no more rows and columns than `bounds` allow: first what differs."""
    wrong = sights.list_wrong()
    total = sights.count_rows()
    rows = choose(range(total), wrong, bounds.rows)
    columns, seen = get_columns(sights, rows)
    absent = list_absent(sights, columns, rows)
    all_columns = [*columns, *absent]
    squares = {
        row: get_squares(get_row(sights.wanted, row), all_columns, seen[row], sights)
        for row in rows
    }
    marked = sorted(
        {
            at
            for row in squares.values()
            for at, square in enumerate(row)
            if square in WRONG
        }
    )
    shown = choose(range(len(all_columns)), marked, bounds.columns)
    chips = [
        tokens_known.make_chip(token, "absent" if at >= len(columns) else "")
        for at, token in enumerate(all_columns)
        if at in shown
    ]
    breaks = find_breaks(shown)
    return Grid(
        title,
        tuple(put_between(chips, breaks, GAP)),
        tuple(
            Row(
                sights.label(row),
                "".join(put_between([squares[row][at] for at in shown], breaks, " ")),
            )
            for row in rows
        ),
        is_layout=sights.columns is not None and sights.got is not None,
        wrong=len(wrong),
        rows_left_out=total - len(rows),
        columns_left_out=len(all_columns) - len(shown),
    )


def get_row(rows: Sequence[Sequence[Token]] | None, row: int) -> Sequence[Token]:
    return rows[row] if rows is not None and row < len(rows) else ()


def get_columns(
    sights: Sights, rows: Iterable[int]
) -> tuple[list[Token], Mapping[int, Sequence[int]]]:
    """The columns, and for each of `rows` those that it sees."""
    rows = list(rows)
    got = sights.wanted if sights.got is None else sights.got
    if sights.columns is not None and sights.got is not None:
        columns = list(sights.columns)
        if sights.seen is not None:
            return columns, {row: get_row(sights.seen, row) for row in rows}
    else:
        columns = list_tokens(get_row(got, row) for row in rows)
    return columns, {row: find_columns(columns, get_row(got, row)) for row in rows}


def list_tokens(rows: Iterable[Sequence[Token]]) -> list[Token]:
    """All that some row sees, as often as one row does: tokens in their order, then
    words."""
    most: Counter[Token] = Counter()
    for row in rows:
        most |= Counter(row)
    return sorted(
        most.elements(), key=lambda token: (isinstance(token, str), place_token(token))
    )


def place_token(token: Token) -> Any:
    return token if not isinstance(token, int) else (token,)


def find_columns(columns: Sequence[Token], row: Sequence[Token]) -> list[int]:
    """The first columns that hold what a row sees."""
    wanted = Counter(row)
    indices = []
    for at, token in enumerate(columns):
        if wanted[token] > 0:
            wanted[token] -= 1
            indices.append(at)
    return indices


def list_absent(
    sights: Sights, columns: Sequence[Token], rows: Iterable[int]
) -> list[Token]:
    """Lists what rows should see that is in no column."""
    if sights.got is None:
        return []
    wanted = Counter(list_tokens(get_row(sights.wanted, row) for row in rows))
    return list((wanted - Counter(columns)).elements())


def get_squares(
    wanted: Sequence[Token], columns: Sequence[Token], seen: Sequence[int], sights: Sights
) -> list[str]:
    """One row: a square for each column."""
    unseen = Counter(wanted)
    squares = [HIDDEN] * len(columns)
    for at in seen:
        token = columns[at]
        squares[at] = SEEN if unseen[token] > 0 else EXTRA
        unseen[token] -= 1
    for at, token in enumerate(columns):
        if squares[at] == HIDDEN and unseen[token] > 0:
            squares[at] = MISSING
            unseen[token] -= 1
    return squares


# --- what is left out -------------------------------------------------------------------


def choose(indices: Sequence[int], first: Sequence[int], most: int) -> list[int]:
    """At most `most` of `places`, in order: those of `first`, then their neighbours,
    then the last ones."""
    if len(indices) <= most:
        return list(indices)
    chosen = dict.fromkeys(first[:most])
    neighbours = [at + step for step in (-1, 1, -2, 2) for at in first[:most]]
    for at in (*neighbours, *reversed(indices)):
        if len(chosen) >= most:
            break
        if at in indices:
            chosen.setdefault(at)
    return sorted(chosen)


def find_breaks(shown: Sequence[int]) -> list[int]:
    """Before which of the shown columns others are left out."""
    return [n for n, at in enumerate(shown) if at != (shown[n - 1] + 1 if n else 0)]


def put_between(items: Sequence[Any], breaks: Sequence[int], gap: Any) -> Iterator[Any]:
    """The items, with a gap before those at `breaks`."""
    for n, item in enumerate(items):
        if n in breaks:
            yield gap
        yield item


# --- a step -----------------------------------------------------------------------------


MOST_WORDS = 160

HOLDS = "holds"


Told = Mapping[str, Sequence[tuple[str, str]]]
"""See `System.tell_held`."""


@dataclass
class Found:
    """What an answer shows.

    Attributes:
        facts: with the number of the part that they are about; None for the whole.
        sights: with the number of the part, and a title.
    """

    facts: list[tuple[int | None, Fact]] = field(default_factory=list)
    sights: list[tuple[int, str, Sights]] = field(default_factory=list)

    def list_facts(self, number: int | None) -> tuple[Fact, ...]:
        return tuple(fact for index, fact in self.facts if index == number)


def draw_step(
    step: Step,
    answers: tuple[Answer, Answer | None],
    contents: Sequence[Held],
    tokens_known: Known,
    describe: Callable[[int], str],
    bounds: Bounds,
    reports: Told = MappingProxyType({}),
) -> Step:
    """The step with its picture. answers: expected, got (None: there is none). held: see
    `Contract.open_model`. describe: a row in words. reports: see `System.tell_held`."""
    shown = Found()
    collect(shown, *answers, describe)
    grids: dict[int, list[Grid]] = {}
    for number, title, sights in shown.sights:
        grids.setdefault(number, []).append(
            draw_grid(title, sights, tokens_known.within(contents[number][1]), bounds)
        )
    wrong = {number for number, drawn in grids.items() if any(g.wrong for g in drawn)}
    wrong |= {
        number for number, fact in shown.facts if number is not None and fact.differs
    }
    order = choose(range(len(contents)), sorted(wrong) or [0], bounds.parts)
    drawn_parts = []
    for number in order:
        drawn_part = draw_part(*contents[number], tokens_known, bounds)
        part_grids = tuple(grids.get(number, ()))
        facts = [*shown.list_facts(number), *list_told(reports.get(drawn_part.title, ()))]
        drawn_parts.append(replace(drawn_part, grids=part_grids, facts=tuple(facts)))
    return replace(
        step,
        facts=shown.list_facts(None),
        parts=tuple(drawn_parts),
        parts_left_out=len(contents) - len(drawn_parts),
    )


def list_told(reports: Sequence[tuple[str, str]]) -> Iterator[Fact]:
    """What a backend told of a part, which is compared with nothing."""
    for name, text in reports:
        text = clean(text, MOST_WORDS)
        yield Fact(name, text, text, False)


def draw_part(
    title: str, tokens: Sequence[Any], tokens_known: Known, bounds: Bounds
) -> Part:
    """The last of its tokens: the latest are those that a step is about."""
    shown = tokens[-bounds.columns :]
    chips = [make_held_chip(token, tokens_known) for token in shown]
    return Part(title, tuple(chips), len(tokens) - len(shown), ())


def make_held_chip(token: Any, tokens_known: Known) -> Chip:
    mark = "old" if token.is_old else ""
    description = tokens_known.say(token.tag, token.position, token.sequences, mark)
    return Chip(
        str(token.tag),
        description,
        token.tag,
        token.position,
        tuple(token.sequences),
        mark,
    )


def collect(
    shown: Found,
    expected: Answer,
    got: Answer | None,
    describe: Callable[[int], str],
    number: int | None = None,
    title: str = "",
) -> int:
    """Collects what two answers say, number by number and row by row.

    Args:
        shown: gets it.
        expected: the reference's answer.
        got: the backend's; None if it gave none.
        describe: puts a row in words.
        number: of the part that the answers are about, where parts of parts are counted
            one after the other; None for the whole.
        title: of what rows see.

    Returns:
        The number of the next part.
    """
    if got is not None and "error" in got and "error" not in expected:
        message = f"{got['error']} error: {got.get('why', '')}"
        fact = Fact("error", "none", clean(message, MOST_WORDS), True)
        shown.facts.append((number, fact))
        got = None  # it says nothing else
    at = number or 0
    after = at + 1
    for name, wanted in expected.items():
        value = None if got is None else got.get(name)
        if name == PARTS:
            answers, after = value if isinstance(value, list) else [], at
            for wanted_part, answer in zip_longest(wanted, answers[: len(wanted)]):
                after = collect(shown, wanted_part, answer, describe, after, title)
        elif name in (ROWS, TAGS) or (name == STORED and isinstance(wanted, list)):
            shown.sights.append((at, title, make_sights(name, wanted, got, describe)))
        elif name == STATES:
            facts = compare_states(wanted, value, got is not None)
            shown.facts += [(number, fact) for fact in facts]
        else:
            fact = compare_fact(name, wanted, value, got is not None)
            shown.facts.append((number, fact))
    for layer_number, layer in enumerate((got or {}).get(LAYERS, ()), 1):
        if find_difference(expected, layer, describe):
            collect(shown, expected, layer, describe, number, f"layer {layer_number}")
    return after


def make_sights(
    name: str, wanted: Any, got: Answer | None, describe: Callable[[int], str]
) -> Sights:
    """Makes what rows see; of tokens that are listed, one row that holds them."""
    if name != ROWS:
        wanted, describe = [wanted], lambda row: HOLDS
    if got is None:
        return Sights(wanted, None, None, None, describe)
    value = got.get(name) or []
    rows = value if name == ROWS else [value]
    return Sights(wanted, rows, got.get(COLUMNS), got.get("seen"), describe)


def compare_fact(name: str, wanted: Any, value: Any, answered: bool) -> Fact:
    said = shorten(wanted), shorten(value) if answered else None
    return Fact(name.replace("_", " "), *said, answered and not is_same(wanted, value))


def is_same(wanted: Any, value: Any) -> bool:
    """Whether a backend's answer equals what is expected, whatever it is made of."""
    try:
        return bool(wanted == value)
    except Exception:
        return False


def compare_states(wanted: Any, value: Any, answered: bool) -> Iterator[Fact]:
    """Compares what each state has read; the order counts."""
    for number, (wanted_tokens, read) in enumerate(
        zip_longest(wanted, value or (), fillvalue=())
    ):
        differs = answered and list(wanted_tokens) != list(read)
        text = join(read) or "nothing" if answered else None
        yield Fact(f"state {number}", join(wanted_tokens) or "nothing", text, differs)


def shorten(value: Any) -> str:
    """A value in words, which may be a list."""
    if isinstance(value, list | tuple):
        return clean(", ".join(map(say, value)), MOST_WORDS) or "nothing"
    if isinstance(value, Mapping):
        return clean(str(value), MOST_WORDS)
    return clean(say(value), MOST_WORDS)
