"""Batches of recurrent states on MLX."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.mlx.state import StateCache
from lockstep.impl.shared.batched import Bools
from lockstep.impl.shared.batched_state import StateBatch


class BatchedState(StateBatch):
    """The states of a linear-recurrent layer for several requests, initially zeros.

    The arrays that `read` returns keep their content.
    """

    single = StateCache
    arrays: Pair

    def read(self) -> Pair:
        """Returns new array objects with the same content, so that a slice assignment by
        the caller does not change the batch."""
        conv, delta = self.arrays
        return conv[...], delta[...]

    def convert(self, tokens: Bools) -> mx.array:
        return mx.array(tokens)

    def choose(self, array: mx.array, rows: Sequence[int]) -> mx.array:
        return array[mx.array([*rows])]

    def concatenate(self, arrays: Sequence[mx.array]) -> mx.array:
        return mx.concatenate([*arrays])

    def clear_array(self, array: mx.array) -> mx.array:
        return mx.zeros_like(array)

    def store(self, arrays: Pair) -> None:
        self.arrays = make_compact(arrays)

    def make_single(self) -> StateCache:
        conv, delta = self.arrays
        return StateCache((1, *conv.shape[1:]), (1, *delta.shape[1:]), conv.dtype)
