"""Batches of ours beside the reference, filled with tokens that tell which they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from frameworks import HEADS, Framework

from lockstep.reference.batched import BatchedCache
from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache

Bools = npt.NDArray[np.bool_]
BOTH = pytest.mark.parametrize("window", [None, 4])


def make_reference(rows: int, window: int | None) -> BatchedCache:
    return BatchedCache([make_row(window) for _ in range(rows)])


def make_row(window: int | None) -> Any:
    return KVCache() if window is None else RotatingCache(window)


class Tags:
    """Gives each token a number of its own, from 1."""

    def __init__(self) -> None:
        self.last = 0

    def take(self, count: int) -> list[int]:
        self.last += count
        return [*range(self.last - count + 1, self.last + 1)]


def fill_columns(
    tags: Sequence[Sequence[int]], length: int, left: Sequence[int]
) -> list[list[float]]:
    """The columns of an update: NaN in those that are padding."""
    rows = []
    for own, before in zip(tags, left, strict=True):
        behind = length - before - len(own)
        rows.append([*[nan] * before, *own, *[nan] * behind])
    return rows


def read_tokens(on: Framework, pair: Any) -> npt.NDArray[np.float32]:
    """The number in each column, [rows, columns]; NaN where V has not minus it."""
    keys, values = (on.numpy(array) for array in pair)
    assert keys.shape[1:3] == values.shape[1:3] and keys.shape[1] == HEADS
    numbers = keys[:, 0, :, 0]
    same = (keys == numbers[:, None, :, None]).all((1, 3))
    same &= (values == -numbers[:, None, :, None]).all((1, 3))
    return np.where(same, numbers, np.float32(nan))


def read_mask(on: Framework, mask: Any, rows: int, length: int, width: int) -> Bools:
    """What each query sees, [rows, length, width]."""
    shape = rows, length, width
    if mask is None:
        return np.ones(shape, np.bool_)
    if isinstance(mask, str):
        return np.broadcast_to(np.tri(length, width, width - length, dtype=bool), shape)
    content = on.numpy(mask)
    seen = content if content.dtype == np.bool_ else content == 0
    if seen.ndim == 4:
        assert seen.shape[1] == 1
        seen = seen[:, 0]
    return np.broadcast_to(seen, shape)


def update(
    on: Framework,
    batch: Any,
    reference: BatchedCache,
    tags: Tags,
    length: int,
    left: Sequence[int] | None = None,
) -> Any:
    """Appends columns to both, and compares what every query sees; returns K and V."""
    counts = reference.count_tokens(length, left)
    own = [tags.take(count) for count in counts]
    before = left or [0] * len(counts)
    if left is not None:
        batch.pad_left(left)
    given = on.feed_rows(fill_columns(own, length, before))
    kept = [on.numpy(array).copy() for array in given]
    begins = reference.offsets
    offsets, told = batch.offsets, list(batch.offsets)
    mask = batch.make_mask(length)
    pair = batch.update(*given)
    reference.update(length, own)
    assert list(offsets) == told
    for array, content in zip(given, kept, strict=True):
        assert np.array_equal(on.numpy(array), content, equal_nan=True)
    tokens = read_tokens(on, pair)
    if batch.fill is None or batch.fill == 0:  # hidden columns count 0 times in attention
        assert all(np.isfinite(on.numpy(array)).all() for array in pair)
    seen = read_mask(on, mask, len(counts), length, tokens.shape[1])
    for row, (begin, count) in enumerate(zip(begins, counts, strict=True)):
        for query in range(count):
            column, position = before[row] + query, begin + query
            assert told[row] + column == position
            right = [token.tag for token in reference.rows[row].visible(position)]
            assert sorted(tokens[row, seen[row, column]].tolist()) == right
    for array in given:  # the caller's from now on
        on.backend.overwrite(array)
    check(on, batch, reference)
    return pair


def prefill(
    on: Framework,
    batch: Any,
    reference: BatchedCache,
    tags: Tags,
    lengths: Sequence[int],
    chunks: Sequence[int],
) -> None:
    """Appends prompts of these lengths, padded on the right, in chunks."""
    batch.pad_right(lengths)
    reference.pad_right(lengths)
    for chunk in chunks:
        update(on, batch, reference, tags, chunk)
    batch.finalize()
    reference.finalize()
    check(on, batch, reference)


def check(on: Framework, batch: Any, reference: BatchedCache) -> None:
    """Compares all that the rows hold."""
    sizes, states = batch.size(), batch.state()
    assert len(sizes) == len(states) == len(reference.rows)
    if reference.coming is None:
        assert list(batch.offsets) == reference.offsets
    assert list(sizes) == [row.size() for row in reference.rows]
    for state, row in zip(states, reference.rows, strict=True):
        check_row(on, state, row)


def check_row(on: Framework, state: Any, row: Any) -> None:
    got = [] if state is None else read_tokens(on, state)[0].tolist()
    assert sorted(got) == [token.tag for token in row.state()]


# --- ready to go ---


def make(on: Framework, rows: int, window: int | None, **options: Any) -> Any:
    """A batch of ours, the reference, and tags."""
    options = {"step": 4, **options}
    return on.batch(rows, window, **options), make_reference(rows, window), Tags()


def fill(
    on: Framework, lengths: Sequence[int], window: int | None, **options: Any
) -> Any:
    """The same with prompts of these lengths, or none."""
    batch, reference, tags = make(on, len(lengths), window, **options)
    if any(lengths):
        prefill(on, batch, reference, tags, lengths, [max(lengths)])
    return batch, reference, tags


def decode(on: Framework, batch: Any, reference: Any, tags: Tags, steps: int) -> None:
    for _ in range(steps):
        update(on, batch, reference, tags, 1)


def go_on(on: Framework, batch: Any, reference: Any, tags: Tags) -> None:
    """A token, several, and tokens until every ring has turned."""
    for length in (1, 3, 1, 6, 1, 1, 1, 1, 1):
        update(on, batch, reference, tags, length)
