"""Positions of three axes in our caches on each framework: what no program passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frameworks import Framework

from lockstep.impl.shared.axes import MOST, get_end, get_offsets, pack
from lockstep.impl.shared.wrapper import WrapperCache

IMAGE = [(2, 2), (2, 3), (3, 2), (3, 3)]


def open_cache(on: Framework) -> Any:
    """Returns a cache with text and an image of two rows and columns at position 2."""
    cache = on.causal(sections=[1, 1])
    cache.forward([0, 2, 2, 2, 2], [0] * 5, coordinates=np.array([(0, 0), *IMAGE]))
    cache.put(0, *on.feed(range(5)))
    return cache


def test_numbers_keep_coordinates_up_to_the_largest() -> None:
    positions, last = np.array([0, MOST - 1, MOST - 1, 7]), MOST - 1
    numbers = pack(positions, [(last, last), (0, 0), (last, 0), (9, 3)])
    assert (numbers >= 0).all()
    assert sorted(numbers) == [numbers[at] for at in (0, 3, 1, 2)]
    wanted = [[last, -last, 0, 2], [last, -last, -last, -4]]
    assert get_offsets(numbers).tolist() == wanted
    assert [get_end(numbers[at : at + 1]) for at in range(4)] == [MOST, MOST, MOST, 10]


@pytest.mark.parametrize(
    ("positions", "coordinates", "message"),
    [
        (
            [3, 4],
            [(3, 3)],
            r"must be 2 pairs \(y, x\), one for each row, but",
        ),
        ([3], [(3, 3), (4, 4)], "must be 1 pairs"),
        ([3], [(3,)], r"must be 1 pairs .* are \[\(3,\)\]"),
        ([3], [(3, 3, 3)], "must be 1 pairs"),
        ([3], [(3, -2)], f"coordinate -2 is not in 0 … {MOST - 1}"),
        ([3], [(MOST, 3)], f"coordinate {MOST} is not in 0 … {MOST - 1}"),
        ([MOST], (), f"coordinate {MOST} is not in 0 … {MOST - 1}"),
        ([-1], [(3, 3)], "position -1 is negative"),
    ],
)
def test_wrong_coordinates_change_nothing(
    on: Framework, positions: list[int], coordinates: Any, message: str
) -> None:
    cache = open_cache(on)
    rows = positions, [0] * len(positions)
    with pytest.raises(ValueError, match=message):
        cache.forward(*rows, coordinates=coordinates)
    mask = on.numpy(cache.get(0)[2])
    assert (mask == 0).tolist() == np.tri(5, dtype=bool).tolist()


def test_coordinates_need_sections(on: Framework) -> None:
    cache = on.causal()
    with pytest.raises(ValueError, match="need a cache that was opened with sections"):
        cache.forward([3], [0], coordinates=[(3, 3)])
    encoder = on.module["encoder"].EncoderCache(1, 4)
    wrapper = WrapperCache([encoder, on.causal(sections=[1, 1])], 1)
    with pytest.raises(ValueError, match="encoder has positions of one axis"):
        wrapper.forward([3], [0], coordinates=[(3, 3)])
    with pytest.raises(ValueError, match="recurrent cache has positions of one axis"):
        on.recurrent(sections=[1, 1])


@pytest.mark.parametrize("sections", [[1], [2, 1], [1, 1, 1]])
def test_sections_have_all_pairs_of_a_key(on: Framework, sections: list[int]) -> None:
    cache = on.causal(sections=sections)
    cache.forward([0], [0])
    with pytest.raises(ValueError, match=r"sections \[.*\] must add up to 2 pairs"):
        cache.put(0, *on.feed([0]))
    assert cache.form is None


def test_a_save_is_loaded_with_the_same_sections(on: Framework) -> None:
    with pytest.raises(ValueError, match=r"sections was \[1, 1\], but is None here"):
        on.causal().load(open_cache(on).save())
