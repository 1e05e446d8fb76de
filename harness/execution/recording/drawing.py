"""From the answers of both sides to the picture of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from lockstep.harness.contracts.operation import Answer, Held
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
from lockstep.harness.execution.recording.grid import Known, Sights, choose, draw_grid
from lockstep.harness.execution.recording.picture import (
    Bounds,
    Chip,
    Fact,
    Grid,
    Part,
    Step,
)

MOST_WORDS = 160

HOLDS = "holds"


@dataclass
class Found:
    """The parts that an answer shows. sights: by the number of the part, with a title."""

    facts: list[Fact] = field(default_factory=list)
    sights: list[tuple[int, str, Sights]] = field(default_factory=list)


def draw_step(
    step: Step,
    answers: tuple[Answer, Answer | None],
    held: Sequence[Held],
    known: Known,
    describe: Callable[[int], str],
    bounds: Bounds,
) -> Step:
    """The step with its picture. answers: expected, got (None: there is none). held: see
    `Contract.list_held`. describe: a row in words."""
    found = Found()
    collect(found, *answers, describe)
    grids: dict[int, list[Grid]] = {}
    for number, title, sights in found.sights:
        grids.setdefault(number, []).append(
            draw_grid(title, sights, known.within(held[number][1]), bounds)
        )
    wrong = [number for number, some in grids.items() if any(g.wrong for g in some)]
    order = choose(range(len(held)), wrong or [0], bounds.parts)
    parts = [
        draw_part(*held[number], grids.get(number, []), known, bounds) for number in order
    ]
    left_out = len(held) - len(parts)
    return replace(
        step, facts=tuple(found.facts), parts=tuple(parts), parts_left_out=left_out
    )


def draw_part(
    title: str, places: Sequence[Any], grids: Sequence[Grid], known: Known, bounds: Bounds
) -> Part:
    """The last of its tokens: the latest are those that a step is about."""
    shown = places[-bounds.columns :]
    chips = [make_held_chip(place, known) for place in shown]
    return Part(title, tuple(chips), len(places) - len(shown), tuple(grids))


def make_held_chip(place: Any, known: Known) -> Chip:
    mark = "old" if place.is_old else ""
    words = known.say(place.tag, place.position, place.sequences, mark)
    return Chip(
        str(place.tag), words, place.tag, place.position, tuple(place.sequences), mark
    )


def collect(
    found: Found,
    expected: Answer,
    got: Answer | None,
    describe: Callable[[int], str],
    number: int = 0,
    title: str = "",
) -> None:
    """Collects what two answers say, number by number and row by row."""
    if got is not None and "error" in got and "error" not in expected:
        words = f"{got['error']} error: {got.get('why', '')}"
        found.facts.append(Fact("error", "none", clean(words, MOST_WORDS), True))
        got = None  # it says nothing else
    for name, wanted in expected.items():
        value = None if got is None else got.get(name)
        if name == PARTS:
            answers = value if isinstance(value, list) else []
            for at, part in enumerate(wanted):
                own = answers[at] if at < len(answers) else None
                collect(found, part, own, describe, at, title)
        elif name in (ROWS, TAGS) or (name == STORED and isinstance(wanted, list)):
            sights = make_sights(name, wanted, got, describe)
            found.sights.append((number, title, sights))
        elif name == STATES:
            found.facts += compare_states(wanted, value, got is not None)
        else:
            found.facts.append(compare_fact(name, wanted, value, got is not None))
    for at, layer in enumerate((got or {}).get(LAYERS, ()), 1):
        if find_difference(expected, layer, describe):
            collect(found, expected, layer, describe, number, f"layer {at}")


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
    for number, (right, read) in enumerate(
        zip_longest(wanted, value or (), fillvalue=())
    ):
        differs = answered and list(right) != list(read)
        words = join(read) or "nothing" if answered else None
        yield Fact(f"state {number}", join(right) or "nothing", words, differs)


def shorten(value: Any) -> str:
    """A value in words, which may be a list."""
    if isinstance(value, list | tuple):
        return clean(", ".join(map(say, value)), MOST_WORDS) or "nothing"
    if isinstance(value, Mapping):
        return clean(str(value), MOST_WORDS)
    return clean(say(value), MOST_WORDS)
