"""Positions of three axes, by cases worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.rope import list_axes, rotate

TEXT = [(0, 0, 0), (1, 1, 1)]
IMAGE = [(2, 2, 2), (2, 2, 3), (2, 2, 4), (2, 3, 2), (2, 3, 3), (2, 3, 4)]
AFTER = [(5, 5, 5), (6, 6, 6)]
"""An image of two rows and three columns; the text after it begins at 2 + 3."""


def make_batch(places: Sequence[tuple[int, int, int]], *exceptions: int) -> Batch:
    positions, coordinates = [t for t, _, _ in places], [at[1:] for at in places]
    return Batch(positions, [0] * len(places), exceptions, coordinates=coordinates)


def open_cache(window: int = 0, memory: int = 0) -> CausalCache:
    """Returns a cache with text, an image and text: the tags 0 and 1, 2 … 7, 8 and 9."""
    cache = CausalCache(1, 40, 16, window, memory)
    cache.forward(make_batch(TEXT + IMAGE + AFTER), range(10))
    return cache


def list_places(cache: CausalCache) -> list[tuple[int, int, int]]:
    return [token.place for token in cache.tokens]


def see(cache: CausalCache, rows: int) -> list[list[int]]:
    return [[token.tag for token in cache.visible(row)] for row in range(rows)]


def test_at_one_position_a_row_sees_the_rows_and_columns_before_it() -> None:
    cache = open_cache()
    assert see(cache, 10) == [[*range(n + 1)] for n in range(10)]


def test_the_order_is_that_of_coordinates_and_not_of_rows() -> None:
    cache = CausalCache(1, 8, 8)
    cache.forward(make_batch([(4, 5, 4), (4, 4, 5), (4, 4, 4)], 2), range(3))
    assert see(cache, 3) == [[0, 1, 2], [1, 2], [0, 1, 2]]


def test_a_later_pass_continues_an_image() -> None:
    cache = open_cache()
    cache.forward(make_batch([(2, 2, 6), (2, 4, 2), (2, 2, 2)]), (10, 11, 12))
    seen = [0, 1, 2, 3, 4, 10, 12], [0, 1, *range(2, 8), 10, 11, 12], [0, 1, 2, 12]
    assert see(cache, 3) == [*seen]


def test_a_window_counts_positions_and_not_tokens() -> None:
    cache = open_cache(window=3)
    assert see(cache, 10)[8:] == [[*range(2, 9)], [8, 9]]  # from 5 - 3, from 6 - 3 on


def test_a_sequence_ends_after_its_largest_coordinate() -> None:
    cache = open_cache(window=2, memory=4)
    cache.remove(0, 3, None)
    assert list_places(cache) == TEXT + IMAGE
    assert cache.get_end(0) == 5
    answers = [cache.can_resume(0, position) for position in range(7)]
    assert answers == [True, True, True, True, True, True, False]


def test_memory_ends_before_the_next_position() -> None:
    cache = CausalCache(2, 4, 8, 1, 3)
    cache.forward(make_batch([*TEXT, (2, 2, 2), (2, 2, 4)]), range(4))
    cache.forward(Batch([0], [1]), [4])
    assert [token.tag for token in cache.get_tokens(0)] == [2, 3]  # from 5 - 3 on


@pytest.mark.parametrize(
    ("begin", "end", "kept"),
    [
        (2, 3, [*TEXT, (4, 4, 4), (5, 5, 5)]),
        (2, 5, [*TEXT, (2, 2, 2), (3, 3, 3)]),
        (3, 5, [*TEXT, *IMAGE, (3, 3, 3), (4, 4, 4)]),
        (3, 6, [*TEXT, *IMAGE, (3, 3, 3)]),
        (0, 1, [(0, 0, 0)] + [(t - 1, y - 1, x - 1) for t, y, x in IMAGE + AFTER]),
        (1, 2, TEXT[:1] + [(t - 1, y - 1, x - 1) for t, y, x in IMAGE + AFTER]),
        (2, None, TEXT),
    ],
)
def test_a_removal_moves_all_coordinates(
    begin: int, end: int | None, kept: list[tuple[int, int, int]]
) -> None:
    cache = open_cache()
    cache.remove(0, begin, end)
    assert list_places(cache) == kept


def test_a_video_moves_even_below_its_first_row() -> None:
    cache = CausalCache(1, 8, 8)
    cache.forward(make_batch([*TEXT, (2, 2, 2), (3, 2, 3), (4, 2, 2)]), range(5))
    cache.remove(0, 0, 3)
    assert list_places(cache) == [(0, -1, 0), (1, -1, -1)]


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ([(3, 3)], "coordinates must be 2 pairs"),
        ([(3, 3), (4, 4), (5, 5)], "coordinates must be 2 pairs"),
        ([(3, 3), (4,)], "coordinates must be 2 pairs"),
        ([(3, 3), (4, -1)], "position -1 is negative"),
    ],
)
def test_wrong_coordinates_change_nothing(
    coordinates: list[tuple[int, ...]], message: str
) -> None:
    cache = open_cache()
    with pytest.raises(ValueError, match=message):
        cache.forward(Batch([7, 8], [0, 0], coordinates=coordinates), (10, 11))
    assert list_places(cache) == TEXT + IMAGE + AFTER
    assert see(cache, 10)[9] == [*range(10)]


# --- rotation ---------------------------------------------------------------------------

KEY = [0.5, -1.0, 2.0, 3.0, 1.5, -0.25, 0.0, 4.0]


def test_each_pair_turns_by_the_coordinate_of_its_section() -> None:
    turned = rotate(KEY, (7, 9, 12), 100, (1, 2, 1))
    wanted = [rotate(KEY, at, 100) for at in (7, 9, 12)]
    for pair, axis in enumerate((0, 1, 1, 2)):
        assert turned[pair::4] == wanted[axis][pair::4]


def test_sections_begin_again_with_the_first_axis() -> None:
    """As in Qwen3-VL, where the axes take turns."""
    assert list_axes((1, 1, 1, 1, 1, 1, 2), 8) == [0, 1, 2, 0, 1, 2, 0, 0]


def test_a_moved_key_turns_by_one_distance() -> None:
    """So a cache can move a key without its sections."""
    moved = rotate(rotate(KEY, (7, 9, 12), 100, (1, 2, 1)), -5, 100)
    assert moved == pytest.approx(rotate(KEY, (2, 4, 7), 100, (1, 2, 1)))


@pytest.mark.parametrize("sections", [(1, 2), (2, 2, 1), (4, 4, 4)])
def test_sections_must_have_all_pairs(sections: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"have \d+ pairs, but a key has 4"):
        rotate(KEY, (7, 9, 12), 100, sections)
