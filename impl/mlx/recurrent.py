"""A causal cache with recurrent states, on MLX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.shared.batch import as_slice
from lockstep.impl.shared.recurrent import RecurrentCacheBase

SPARED = 1 << 14
"""`mx.contiguous` copies nothing if the buffer is at most this number of bytes larger."""


class RecurrentCache(RecurrentCacheBase, CausalCache):
    """A causal cache with the states of all sequences, in two buffers for each layer.

    A buffer has one row for each slot.

    Args:
        sizes, layers, options: see `CausalCache`.
        slots: see `impl.shared.slots`.
        conv: shape of a conv state, [conv_width - 1, channels], in the dtype of keys.
        delta: shape of a delta state, [heads, key_dim, value_dim], float32.
    """

    def make_states(self, conv: Sequence[int], delta: Sequence[int]) -> None:
        count, layers = self.slots.count, range(self.layers)
        self.conv = [mx.zeros((count, *conv), self.dtype) for _ in layers]
        self.delta = [mx.zeros((count, *delta), mx.float32) for _ in layers]

    def read_states(self, layer: int) -> Pair:
        """Returns conv and delta of the sequences of the open pass, in order of first
        appearance."""
        slots = self.list_slots()
        spared = self.sizes.get_small(SPARED)
        conv, delta = self.conv[layer], self.delta[layer]
        return read_slots(conv, slots, spared), read_slots(delta, slots, spared)

    def store_states(self, layer: int, conv: mx.array, delta: mx.array) -> None:
        self.write_slots(layer, self.list_slots(), conv, delta)
        for row, checkpoint in enumerate(self.pending):
            if checkpoint is not None:
                copied = make_compact((conv[row], delta[row]))
                checkpoint.arrays[layer] = copied
                # Computed with the next read: a checkpoint that is never used would
                # otherwise keep the states of the whole batch alive.
                self.conv[layer] = mx.depends(self.conv[layer], copied)

    def write_slots(
        self, layer: int, slots: Sequence[int], conv: Any, delta: Any
    ) -> None:
        """Writes conv and delta to slots: one row for each slot, or one number for all
        slots."""
        numbers = as_slice(np.array(slots))
        index = numbers if isinstance(numbers, slice) else mx.array(numbers)
        self.conv[layer][index] = conv
        self.delta[layer][index] = delta

    def list_states(self) -> list[mx.array]:
        return [*self.conv, *self.delta]

    def clear_slots(self, slots: Sequence[int]) -> None:
        for layer in range(self.layers):
            self.write_slots(layer, slots, 0, 0)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        index = mx.array(list(sources))
        for layer, (conv, delta) in enumerate(zip(self.conv, self.delta, strict=True)):
            rows = mx.take(conv, index, 0), mx.take(delta, index, 0)
            self.write_slots(layer, targets, *rows)

    def copy_slot(self, slot: int) -> dict[int, Pair]:
        pairs = enumerate(zip(self.conv, self.delta, strict=True))
        return {
            layer: make_compact((conv[slot], delta[slot]))
            for layer, (conv, delta) in pairs
        }

    def restore_slot(self, slot: int, arrays: dict[int, Pair]) -> None:
        for layer, (conv, delta) in arrays.items():
            self.write_slots(layer, [slot], conv, delta)


def read_slots(buffer: mx.array, slots: Sequence[int], spared: int) -> mx.array:
    """Returns the rows of these slots, in arrays that keep no large buffer alive.

    If the rows are nearly the whole buffer, they are not copied. Otherwise they are
    copied by `take`, which is faster than a slice.
    """
    numbers = as_slice(np.array(slots))
    if not isinstance(numbers, slice):
        return mx.take(buffer, mx.array(numbers), 0)
    rows = buffer[numbers]
    if buffer.nbytes - rows.nbytes <= spared:
        return mx.contiguous(rows)
    return mx.take(buffer, mx.array(slots), 0)
