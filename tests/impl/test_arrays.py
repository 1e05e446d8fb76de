"""Arrays of the frameworks as the harness gets them: the same numbers in any form."""

from __future__ import annotations

import numpy as np
import pytest

from tests.impl.frameworks import INSTALLED, Framework

EXACT = [0.0, -0.0, 1.0, -1.5, 2.0**-8, 0.99609375, np.inf, -np.inf, np.nan]
"""Numbers that all three dtypes hold."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", INSTALLED)
def test_numbers_go_in_and_come_out(name: str, dtype: str) -> None:
    on = Framework(name)
    numbers = np.array(EXACT * 4, np.float32).reshape(1, 2, 6, 3)
    array = on.array(numbers.copy(), dtype)
    assert on.dtype(array) == dtype
    for part, right in (
        (array, numbers),
        (array[:, :, 1::2], numbers[:, :, 1::2]),
        (array.swapaxes(2, 3), numbers.swapaxes(2, 3)),
        (array[:, :, :0], numbers[:, :, :0]),
    ):
        content = on.numpy(part)
        assert content.dtype == np.float32
        assert content.shape == right.shape
        assert np.array_equal(content, right, equal_nan=True)
        signs = [np.signbit(array[~np.isnan(right)]) for array in (content, right)]
        assert np.array_equal(*signs)  # NaN has none that means anything


@pytest.mark.parametrize("name", INSTALLED)
def test_numbers_between_two_that_a_dtype_holds_go_to_the_nearest(name: str) -> None:
    on = Framework(name)
    for dtype, bits in (("float16", 10), ("bfloat16", 7)):
        step = 2.0**-bits
        numbers = np.float32([1 + 0.25 * step, 1 + 0.5 * step, 1 + 1.5 * step])
        assert on.numpy(on.array(numbers, dtype)).tolist() == [1, 1, 1 + 2 * step]


@pytest.mark.parametrize("name", INSTALLED)
def test_what_is_not_to_be_written_is_not_shared(name: str) -> None:
    on = Framework(name)
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    numbers.flags.writeable = False
    array = on.backend.arrays.from_numpy(numbers, "float32")
    array += 1
    assert on.numpy(array).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
