"""Columns of a pool, without arrays: worked out by hand."""

from __future__ import annotations

import pytest

from lockstep.impl.shared.columns import Columns


def make(starts: tuple[int, ...], room: int, window: int | None = None) -> Columns:
    columns = Columns(len(starts), window, 4)
    columns.starts, columns.room = starts, room
    return columns


@pytest.mark.parametrize(
    ("starts", "lengths", "window", "span"),
    [
        ((0, 2), (5, 3), None, (0, 5)),
        ((3, 2), (5, 3), None, (2, 8)),
        ((3, 0), (5, 0), None, (3, 8)),  # an empty row is nowhere
        ((0, 0), (0, 0), None, (0, 0)),
        ((3, 2), (5, 3), 8, (2, 8)),
        ((3, 2), (6, 3), 8, (0, 8)),  # column 8 is column 0
        ((0, 0), (90, 1), 8, (0, 8)),
    ],
)
def test_the_span_holds_all_tokens(
    starts: tuple[int, ...],
    lengths: tuple[int, ...],
    window: int | None,
    span: tuple[int, int],
) -> None:
    assert make(starts, 8, window).get_span(starts, lengths) == span


@pytest.mark.parametrize(
    ("starts", "lengths", "window", "cursor"),
    [
        ((0, 2), (5, 3), None, 5),
        ((0, 2), (5, 4), None, None),
        ((0, 2), (12, 2), 8, 4),
        ((0, 2), (12, 3), 8, None),
    ],
)
def test_rows_end_in_one_column_or_not(
    starts: tuple[int, ...],
    lengths: tuple[int, ...],
    window: int | None,
    cursor: int | None,
) -> None:
    assert make(starts, 8, window).find_cursor(lengths) == cursor


@pytest.mark.parametrize(
    ("starts", "lengths", "counts", "window", "planned"),
    [
        ((0, 2), (5, 3), (1, 1), None, (0, 2)),  # there is room
        ((2, 4), (5, 3), (2, 2), None, (0, 2)),  # there is none behind: all move
        ((0, 0), (0, 0), (5, 2), None, (0, 3)),  # empty rows end together
        ((1, 0), (4, 0), (1, 2), None, (1, 4)),  # with those that are not empty
        ((0, 0), (2, 0), (1, 5), None, (0, 0)),  # unless these would have to move
        ((0, 2), (5, 3), (9, 9), 8, (0, 2)),  # a ring that is as large as it gets
        ((0, 0), (0, 0), (13, 2), 8, (0, 3)),  # 13 and 2 tokens end in column 5
        ((6, 0), (4, 0), (1, 2), 8, (6, 1)),
    ],
)
def test_rows_stay_where_they_are_if_they_can(
    starts: tuple[int, ...],
    lengths: tuple[int, ...],
    counts: tuple[int, ...],
    window: int | None,
    planned: tuple[int, ...],
) -> None:
    assert make(starts, 8, window).plan(lengths, counts) == planned


@pytest.mark.parametrize(
    ("start", "length", "window", "parts"),
    [
        (2, 3, None, [(0, 2, 5)]),
        (2, 0, None, []),
        (6, 3, 8, [(0, 6, 8), (2, 0, 1)]),
        (6, 10, 8, [(2, 0, 8)]),  # tokens 2 to 9; token 2 is in column 8, that is 0
        (6, 11, 8, [(3, 1, 8), (10, 0, 1)]),
        (0, 8, 8, [(0, 0, 8)]),
    ],
)
def test_a_row_is_one_part_or_two(
    start: int, length: int, window: int | None, parts: list[tuple[int, int, int]]
) -> None:
    assert make((start,), 8, window).find_runs(start, length, 8) == parts
