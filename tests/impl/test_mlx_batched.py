"""Batches on MLX: what is handed out is a value, and rows move in place."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from batches import BOTH, decode, fill, read_tokens, update
from frameworks import HEADS, KEY_DIM, VALUE_DIM, Framework

ROOM = 1 << 13
ROW = 4 * HEADS * (KEY_DIM + VALUE_DIM) * ROOM


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


@BOTH
def test_what_was_handed_out_never_changes(on: Framework, window: int | None) -> None:
    batch, reference, tags = fill(on, [1, 2], window)
    pairs = [update(on, batch, reference, tags, length) for length in (1, 3, 1)]
    states = [pair for pair in batch.state() if pair is not None]
    held = [read_tokens(on, pair) for pair in (*pairs, *states)]
    batch.filter([1])
    reference.filter([1])
    decode(on, batch, reference, tags, 6)
    after = [read_tokens(on, pair) for pair in (*pairs, *states)]
    for left, right in zip(held, after, strict=True):
        assert np.array_equal(left, right, equal_nan=True)


def measure(batch: object, change: object) -> int:
    """The most memory, beyond what there was, while a change is made."""
    mx.eval(batch.pool.arrays)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    change()
    mx.eval(batch.pool.arrays)
    return mx.get_peak_memory() - before


@BOTH
def test_rows_leave_and_join_in_place(on: Framework, window: int | None) -> None:
    """No copy of the pool is made on the way."""
    if window:
        window = ROOM
    batch = on.batch(8, window, step=ROOM)
    batch.pad_right([ROOM - 2] * 7 + [9])
    batch.update(*on.feed_wide(ROOM - 2, rows=8))
    batch.finalize()
    token = on.feed_wide(1, rows=8)
    assert batch.pool.room == ROOM
    assert measure(batch, lambda: mx.eval(batch.update(*token))) < ROW
    assert measure(batch, lambda: batch.filter([0, 1, 2, 3, 4, 6, 7])) < 3 * ROW
    other = batch.extract(0)
    assert measure(batch, lambda: batch.extend(on.stack([other]))) < 4 * ROW
    assert batch.pool.slots == 8
    single = []
    assert measure(batch, lambda: single.append(batch.extract(2))) < 6 * ROW
    assert measure(batch, lambda: mx.eval(batch.update(*token))) < ROW
