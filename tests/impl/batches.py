"""Batches of ours, filled with tokens that tell which they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from frameworks import HEADS, KEY_DIM, VALUE_DIM, Framework

BOTH = pytest.mark.parametrize("window", [None, 4])
TOKEN_BYTES = 4 * HEADS * (KEY_DIM + VALUE_DIM)


def append(on: Framework, batch: Any, length: int = 1) -> Any:
    """Appends columns to each row, full of numbers that count up; returns K and V."""
    numbers = [[offset + n for n in range(length)] for offset in batch.offsets]
    return batch.update(*on.feed_rows(numbers))


def decode(on: Framework, batch: Any, steps: int) -> None:
    for _ in range(steps):
        append(on, batch)


def fill(
    on: Framework, lengths: Sequence[int], window: int | None, **options: Any
) -> Any:
    """A batch with prompts of these lengths."""
    batch = on.batch(len(lengths), window, **{"step": 4, **options})
    batch.pad_right(lengths)
    append(on, batch, max(lengths))
    batch.finalize()
    return batch
