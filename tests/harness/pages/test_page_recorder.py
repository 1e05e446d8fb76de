"""Both sides of a program, step by step, and the grid of squares: it marks what the
comparison finds, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest

from lockstep.harness.contracts.operation import HeldToken
from lockstep.harness.execution.compare import subtract
from lockstep.harness.execution.recording.drawing import (
    Known,
    Sights,
    draw_grid,
    draw_step,
)
from lockstep.harness.execution.recording.picture import (
    EXTRA,
    MISSING,
    SEEN,
    Bounds,
    Grid,
    Step,
)
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers.registry import load
from tests.harness.building import SMALL, draw_some, forward, make, trim, update
from tests.harness.commands import HERE
from tests.harness.pages.conftest import FAULTS, Recorded

Play = Callable[..., Recorded]


torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")

BEGIN = {"op": "begin", "tokens": [1]}
FEED, CLOSE = {"op": "feed", "count": 1}, {"op": "close"}
RESUME = {"op": "can_resume", "sequence": 0, "position": 0}
ROWS = forward([0, 1, 0], [0, 0, 0], **{"except": [2]})
make_unified = partial(make, contract="unified")

RING = make(update(4), update(2), kind="rotating", window=2)
RECORDED = {
    "rotating_chunk_mid_ring": RING,
    "window_off_by_one": make(update(3), kind="rotating", window=1),
    "chunk_boundary": make(update(5), chunk=4),
    "exceptions_by_position": make_unified(ROWS, kind="causal"),
    "swa_idle_sequence": make_unified(
        forward([2, 0], [0, 0]), forward([0], [1]), RESUME,
        kind="swa", window=1, sequences=2,
    ),
    "exact_hit_empty": make(
        BEGIN, FEED, CLOSE, BEGIN, contract="prefix", kind="session"
    ),
}  # fmt: skip
"""Programs that show a planted mistake, by its name."""


def list_marks(step: Step) -> dict[str, list[int]]:
    """The tags that are marked as missing, and as too much, in the first wrong row."""
    for part in step.parts:
        for grid in part.grids:
            for row in grid.rows:
                if row.is_wrong:
                    found: dict[str, list[int]] = {MISSING: [], EXTRA: []}
                    for chip, mark in zip(grid.columns, row.squares, strict=True):
                        if mark in found and chip.tag is not None:
                            found[mark].append(chip.tag)
                    return found
    return {}


@torch
@pytest.mark.parametrize("name", RECORDED)
def test_the_step_that_diverges_is_marked_and_no_other(play: Play, name: str) -> None:
    steps, divergence = play(RECORDED[name], f"{FAULTS}:{name}")
    assert divergence is not None
    assert [step.number for step in steps] == list(range(divergence.step + 1))
    # Where too much memory is held, the answer is right.
    last = divergence.what != "memory"
    assert [step.is_wrong for step in steps] == [False] * divergence.step + [last]
    if divergence.what in ("contents", "mask"):
        marks = list_marks(steps[-1])
        assert sorted(marks[MISSING] + marks[EXTRA]) == sorted(divergence.tokens)


@torch
@pytest.mark.parametrize(
    ("contract", "kinds"),
    [
        ("layer", ("kv", "rotating", "state")),
        ("batched", ("batch-kv", "batch-rotating", "batch-state", "batch-list")),
        ("unified", ("swa", "encoder", "recurrent", "wrapper")),
        ("prefix", ("session", "trie", "slots")),
    ],
)
def test_agreement_has_no_mark(play: Play, contract: str, kinds: Sequence[str]) -> None:
    """Of programs at random, with as much as is drawn, and both sides show the same."""
    declared = load("torch-cpu").contracts[contract]
    drawn = (draw_some(2, contract, kind, declared[kind], 1) for kind in kinds)
    bounds = Bounds(squares=1 << 30)
    for program in chain.from_iterable(drawn):
        steps, divergence = play(program, "torch-cpu", bounds=bounds)
        assert divergence is None
        assert not any(step.is_wrong for step in steps)
        alone, _ = play(program, "reference", bounds=bounds)
        for ours, both in zip(alone, steps, strict=True):
            assert (ours.words, ours.skipped) == (both.words, both.skipped)
            held = [[part.held for part in step.parts] for step in (ours, both)]
            assert held[0] == held[1]
            assert not ours.is_wrong and not ours.answered
            assert all(fact.got is None for fact in ours.facts)


PADDED = make(
    {"op": "open", "rows": 3},
    update(4, left=[0, 1, 3]),
    contract="batched",
    kind="batch-kv",
)


@pytest.mark.parametrize("name", ["keeps_padding", "shows_padding"])
def test_padding_of_a_batch_has_cells_of_its_own(play: Play, name: str) -> None:
    steps, divergence = play(PADDED, f"tests.harness.padding:{name}")
    assert (divergence is None) == (name == "keeps_padding")
    parts = steps[-1].parts
    labels = [[chip.label for chip in part.grids[0].columns] for part in parts]
    assert labels == [
        ["0", "1", "2", "3"],
        ["pad 1.0", "5", "6", "7"],
        ["pad 2.0", "pad 2.1", "pad 2.2", "11"],
    ]
    square = "n" if divergence is None else "x"
    squares = [part.grids[0].rows[0].squares for part in parts]
    assert squares == ["snnn", square + "snn", square * 3 + "s"]


def test_what_is_answered_about_a_row_stands_with_it(play: Play) -> None:
    steps, _ = play(PADDED, "tests.harness.padding:keeps_padding")
    facts = [[(fact.name, fact.got) for fact in part.facts] for part in steps[-1].parts]
    rows = ((0, 4), (0, 3), (0, 1))
    assert facts == [[("position", str(p)), ("offset", str(o))] for p, o in rows]
    assert not steps[-1].facts
    assert [fact.name for fact in steps[0].facts] == ["offsets"]


def test_parts_of_parts_are_counted_one_after_the_other() -> None:
    """As a list of caches answers: for each part, for each row."""
    rows = [{"tags": [1], "offset": 1}, {"tags": [2], "offset": 2}]
    expected = {"caches": [{"caches": rows}, {"caches": rows}], "trimmed": 1}
    wrong = {"caches": [{"caches": rows}, {"caches": [rows[0], {"tags": []}]}]}
    held = [(f"row {n % 2}, part {n // 2}", [HeldToken(n % 2 + 1, 0)]) for n in range(4)]
    answers = expected, {**wrong, "trimmed": 1}
    step = draw_step(Step(0, "trim"), answers, held, KNOWN, "query {}".format, WIDE)
    assert [part.title for part in step.parts] == [title for title, _ in held]
    assert [bool(part.grids[0].wrong) for part in step.parts] == [False] * 3 + [True]
    assert [part.facts[0].differs for part in step.parts] == [False] * 3 + [True]
    assert [fact.name for fact in step.facts] == ["trimmed"]
    assert step.is_wrong


def test_a_row_with_a_wrong_number_is_shown() -> None:
    """Of more rows than are drawn: first those that differ, in whatever."""
    right = {"caches": [{"offset": 1}] * 8}
    wrong = {"caches": [{"offset": 1}] * 7 + [{"offset": 2}]}
    held: Any = [(f"row {n}", []) for n in range(8)]
    step = draw_step(
        Step(0, "update"), (right, wrong), held, KNOWN, "query {}".format, Bounds(parts=2)
    )
    assert [part.title for part in step.parts] == ["row 6", "row 7"]
    assert step.is_wrong and step.parts_left_out == 6
    assert step.left_out == "6 more caches are not shown"
    assert replace(step, parts_left_out=1).left_out == "1 more cache is not shown"
    assert not replace(step, parts_left_out=0).left_out


@torch
def test_each_part_of_a_list_is_drawn_beside_what_it_holds(play: Play) -> None:
    caches = [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 1}]
    opened, one = {"op": "open", "rows": 2}, {"op": "extract", "row": 1, "into": "x"}
    fields = {"contract": "batched", "kind": "batch-list", "caches": caches}
    program = make(opened, update(2), one, **fields)
    steps, _ = play(program, "torch-cpu", bounds=Bounds(parts=8))
    drawn = {
        part.title: [[chip.tag for chip in grid.columns] for grid in part.grids]
        for part in steps[1].parts
    }
    assert drawn == {
        "part 0 of row 0 of a": [[0, 1]],
        "part 0 of row 1 of a": [[2, 3]],
        "part 1 of row 0 of a": [[0, 1]],
        "part 1 of row 1 of a": [[2, 3]],
    }
    titles = [part.title for part in steps[2].parts]
    assert {"part 0 of cache x", "part 1 of cache x"} <= {*titles}


def test_a_backend_that_refuses_is_marked_by_that(play: Play) -> None:
    program = make(update(1), trim(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:answers_in_numpy")
    assert divergence is not None and divergence.what == "result"
    (wrong,) = [fact for fact in steps[-1].facts if fact.differs]
    assert (wrong.name, wrong.expected) == ("trimmed", "1")


def test_a_backend_that_raises_leaves_what_is_expected(play: Play) -> None:
    steps, divergence = play(make(update(1), **SMALL), f"{HERE}:raises")
    assert divergence is not None and divergence.what == "error"
    assert not steps[0].answered
    assert steps[0].facts[0].expected == "1"
    assert [row.squares for row in steps[0].parts[0].grids[0].rows] == ["s"]


def test_the_reference_goes_on_alone(play: Play) -> None:
    program = make(update(1), update(2), update(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:correct", until=2)
    assert divergence is None
    assert [step.answered for step in steps] == [True, True, False]


def test_a_skipped_operation_says_why(play: Play) -> None:
    program = make(update(1), {"op": "close", "snapshot": "s"}, **SMALL)
    steps, _ = play(program, "reference")
    assert steps[1].skipped == "there is no snapshot s"
    assert not steps[1].facts


def test_long_programs_are_left_out_in_the_middle(play: Play) -> None:
    ops = [update(1), {"op": "size"}] * 200
    bounds = Bounds(first=2, last=5, squares=30)
    program = make(*ops, trim(1), **SMALL)
    steps, divergence = play(program, f"{HERE}:answers_in_numpy", bounds=bounds)
    assert divergence is not None and divergence.step == 400
    assert [step.number for step in steps] == [0, 1, 396, 397, 398, 399, 400]
    assert [step.is_drawn for step in steps][-1]
    assert not steps[0].is_drawn and not steps[0].parts
    assert len(steps[-1].parts[0].held) == 32
    assert steps[-1].parts[0].held_left_out == 167


@torch
def test_the_failure_is_shown_that_the_file_names(play: Play) -> None:
    """Watching every array shows another failure of this backend first."""
    clone = {"op": "clone", "into": "b"}
    program = make(clone, update(1), update(1), update(1, cache="b"), update(1))

    def find(wanted: str | None) -> str:
        _, divergence = play(program, f"{FAULTS}:clone_shares", wanted=wanted)
        assert isinstance(divergence, Divergence)
        return divergence.get_signature(program)

    assert find(None) == "layer-kv-update-alias"
    assert find("layer-kv-update-contents") == "layer-kv-update-contents"
    assert find("no such signature") == "layer-kv-update-alias"


WIDE = Bounds(rows=100, columns=100)
KNOWN = Known({}, {}, {})


def see(
    wanted: Sequence[Sequence[Any]],
    columns: Sequence[Any] | None,
    seen: Sequence[Sequence[int]],
) -> Sights:
    """Records a backend that returned these columns and these rows of its mask."""
    assert columns is not None
    got = [[columns[at] for at in row] for row in seen]
    return Sights(wanted, got, columns, seen, "row {}".format)


def list_marked(picture: Grid, row: int, mark: str) -> list[str]:
    squares = picture.rows[row].squares
    return [
        chip.label
        for chip, one in zip(picture.columns, squares, strict=True)
        if one == mark
    ]


def check_marks(sights: Sights, picture: Grid) -> None:
    """Row by row, against the comparison that decides whether a step diverges."""
    assert sights.got is not None
    assert len(picture.rows) == len(sights.wanted)
    for row, (right, got) in enumerate(zip(sights.wanted, sights.got, strict=True)):
        missing, extra = subtract(right, got), subtract(got, right)
        assert Counter(list_marked(picture, row, MISSING)) == Counter(map(str, missing))
        assert Counter(list_marked(picture, row, EXTRA)) == Counter(map(str, extra))
        common = len(right) - len(missing)
        assert len(list_marked(picture, row, SEEN)) == common
        assert picture.rows[row].is_wrong == bool(missing or extra)
    wrong = sum(row.is_wrong for row in picture.rows)
    assert picture.wrong == wrong


def draw_sights(source: random.Random) -> Sights:
    """Rows, columns and a mask at random, wrong here and there."""
    width, length = source.randint(0, 9), source.randint(1, 5)
    columns = [source.randrange(7) for _ in range(width)]
    seen = [[at for at in range(width) if source.random() < 0.6] for _ in range(length)]
    wanted = []
    for row in seen:
        tags = list(dict.fromkeys(columns[at] for at in row))
        if tags and source.random() < 0.4:
            tags.remove(source.choice(tags))
        if source.random() < 0.3:
            tags.append(7 + source.randrange(3))
        wanted.append(tags)
    return see(wanted, columns, seen)


def test_what_differs_is_marked_and_nothing_else() -> None:
    source = random.Random(0)
    wrong = 0
    for _ in range(2000):
        sights = draw_sights(source)
        picture = draw_grid("", sights, KNOWN, WIDE)
        check_marks(sights, picture)
        wrong += bool(picture.wrong)
    assert wrong > 500


@pytest.mark.parametrize(
    ("wanted", "columns", "seen", "labels", "squares"),
    [
        # as they were returned
        ([[3, 4], [4, 5]], [4, 5, 3, "NaN"], [[2, 0], [0, 1, 3]], "453!", "snsn ssnx"),
        # what did not come back stands behind
        ([[3, 4], [4, 5]], [4, 5], [[0], [0, 1]], "453", "snm ssn"),
        # a token at another position is another one
        ([[(1, 7)]], [(2, 7)], [[0]], "77", "xm"),
        # a ring that is stored twice, and a mask that shows both, or one
        ([[1]], [1, 1], [[0, 1]], "11", "sx"),
        ([[1]], [1, 1], [[1]], "11", "ns"),
    ],
)
def test_columns_and_squares(
    wanted: Any, columns: Any, seen: Any, labels: str, squares: str
) -> None:
    picture = draw_grid("", see(wanted, columns, seen), KNOWN, WIDE)
    assert "".join(chip.label for chip in picture.columns) == labels
    assert " ".join(row.squares for row in picture.rows) == squares
    assert [chip.label for chip in picture.returned] == [*labels[: len(columns)]]
    once = len({*labels}) == len(labels)
    assert picture.twice == (frozenset() if once else {int(labels[0])})
    absent = [chip.mark == "absent" for chip in picture.columns]
    assert absent == [at >= len(columns) for at in range(len(labels))]
    assert picture.is_layout


def test_without_a_backend_there_is_the_reference() -> None:
    sights = Sights([[0], [0, 1]], None, None, None, "row {}".format)
    picture = draw_grid("", sights, KNOWN, WIDE)
    assert [row.squares for row in picture.rows] == ["sn", "ss"]
    assert not picture.wrong and not picture.is_layout


def test_what_is_left_out_is_said_and_what_differs_stays() -> None:
    length = 900
    columns = list(range(length))
    seen = [list(range(row + 1)) for row in range(length)]
    wanted = [list(row) for row in seen]
    seen[500] = seen[500][:300] + seen[500][301:]
    picture = draw_grid("", see(wanted, columns, seen), KNOWN, Bounds(rows=8, columns=10))
    assert (len(picture.rows), picture.wrong) == (8, 1)
    assert (picture.rows_left_out, picture.columns_left_out) == (892, 890)
    assert picture.left_out == "left out: 892 rows and 890 columns"
    (wrong,) = [row for row in range(8) if picture.rows[row].is_wrong]
    assert picture.rows[wrong].label == "row 500"
    assert list_marked(picture, wrong, MISSING) == ["300"]
    gaps = [n for n, chip in enumerate(picture.columns) if chip.mark == "gap"]
    assert gaps and all(row.squares[gap] == " " for row in picture.rows for gap in gaps)


def test_more_rows_than_fit_are_counted() -> None:
    sights = see([[0]] * 50, [0], [[]] * 50)
    picture = draw_grid("", sights, KNOWN, Bounds(rows=4, columns=4))
    assert picture.left_out == "left out: 46 rows; 50 rows differ in all"
    assert [row.squares for row in picture.rows] == ["m"] * 4


@pytest.mark.parametrize(
    ("token", "label", "mark", "words"),
    [
        (1, "1", "", "token 1, position 4, sequences 0, 2, written in step 3"),
        (2, "2", "old", "token 2, position 5, before the window, need not be kept"),
        (3, "3", "gone", "token 3, position 6, not held by the reference"),
        (9, "9", "gone", "token 9, not held by the reference"),
        ((8, 1), "1", "", "token 1, position 8, sequences 0, 2, written in step 3"),
        ("NaN", "!", "odd", "NaN"),
        ("zeros", "·", "unread", "zeros"),
        ("pad 0.3", "pad 0.3", "pad", "padding, column 3 of row 0"),
    ],
)
def test_what_is_said_of_a_token(token: Any, label: str, mark: str, words: str) -> None:
    own = {1: HeldToken(1, 4, (0, 2)), 2: HeldToken(2, 5, (), True)}
    known = Known(own, {**own, 3: HeldToken(3, 6)}, {1: 3})
    chip = known.make_chip(token)
    assert (chip.label, chip.mark, chip.words) == (label, mark, words)
