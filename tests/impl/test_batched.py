"""Batches of caches on each framework: a row behaves as the cache of its tokens alone."""

from __future__ import annotations

from math import nan

from batches import BOTH, append, fill
from frameworks import Framework


def test_there_is_nothing_to_hide_in_rows_of_one_length(on: Framework) -> None:
    for rows in (1, 4):
        for window in (None, 4):
            batch = on.batch(rows, window, step=4)
            for _ in range(9):
                assert batch.make_mask(1) is None
                append(on, batch)
    assert fill(on, [9, 4, 5], 4).make_mask(1) is None  # every ring is full
    assert fill(on, [9, 2, 5], 4).make_mask(1) is not None


@BOTH
def test_positions_are_those_of_columns(on: Framework, window: int | None) -> None:
    batch = on.batch(2, window)
    batch.pad_left([0, 2])
    assert on.numpy(batch.get_positions(3)).tolist() == [[0, 1, 2], [-2, -1, 0]]
    batch.update(*on.feed_rows([[1, 2, 3], [nan, nan, 4]]))
    assert on.numpy(batch.get_positions(2)).tolist() == [[3, 4], [1, 2]]


def test_values_may_have_no_numbers(on: Framework) -> None:
    """As in latent attention."""
    batch = on.batch(2, step=2)
    for lengths in ([2, 1], [1, 2], [3, 2]):
        batch.pad_right(lengths)
        batch.update(*on.feed_wide(max(lengths), rows=2, value_dim=0))
        batch.finalize()
    batch.update(*on.feed_wide(1, rows=2, value_dim=0))
    batch.select([1, 0])
    keys, values = batch.update(*on.feed_wide(2, rows=2, value_dim=0))
    assert keys.shape[2] == values.shape[2] == 9
    assert on.numpy(values).size == 0
