"""Batches on MLX: rows move in place."""

from __future__ import annotations

import mlx.core as mx
import pytest
from batches import BOTH, TOKEN_BYTES
from frameworks import Framework

ROOM = 1 << 13
ROW = TOKEN_BYTES * ROOM


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


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
