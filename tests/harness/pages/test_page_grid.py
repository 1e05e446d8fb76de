"""The grid of squares: it marks what the comparison finds, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.harness.contracts.types import Place
from lockstep.harness.execution.compare import subtract
from lockstep.harness.execution.recording.grid import Known, Sights, draw_grid
from lockstep.harness.execution.recording.picture import (
    EXTRA,
    MISSING,
    SEEN,
    Bounds,
    Grid,
)

WIDE = Bounds(rows=100, columns=100)
KNOWN = Known({}, {}, {})


def see(
    wanted: Sequence[Sequence[Any]],
    columns: Sequence[Any] | None,
    seen: Sequence[Sequence[int]],
) -> Sights:
    """What a backend shows that returned these columns and these rows of its mask."""
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
    ],
)
def test_what_is_said_of_a_token(token: Any, label: str, mark: str, words: str) -> None:
    own = {1: Place(1, 4, (0, 2)), 2: Place(2, 5, (), True)}
    known = Known(own, {**own, 3: Place(3, 6)}, {1: 3})
    chip = known.make_chip(token)
    assert (chip.label, chip.mark, chip.words) == (label, mark, words)
