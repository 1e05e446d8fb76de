"""A causal cache with recurrent states, on torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lockstep.impl.shared.batch import as_slice
from lockstep.impl.shared.recurrent import RecurrentCacheBase
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.kernels.plain import Index, read, write
from lockstep.impl.torch.memory import Pair


class RecurrentCache(RecurrentCacheBase, CausalCache):
    """A causal cache with the states of all sequences in two buffers, one row per slot.

    Args:
        sizes, layers, options: as in `CausalCache`.
        slots: see `impl.shared.slots`.
        conv: shape of a conv state, [conv_width - 1, channels], in the dtype of `like`.
        delta: shape of a delta state, [heads, key_dim, value_dim], float32.
    """

    slot_index: Index | None = None  # of the pass, made on first use

    def make_states(self, conv: Sequence[int], delta: Sequence[int]) -> None:
        room = self.layers, self.slots.count
        self.conv = self.like.new_zeros((*room, *conv))
        self.delta = self.like.new_zeros((*room, *delta), dtype=torch.float32)

    def read_states(self, layer: int) -> Pair:
        """Returns conv and delta of the sequences of the open pass, in order of first
        appearance."""
        index = self.get_slot_index()
        return read(self.conv[layer], index, 0), read(self.delta[layer], index, 0)

    def store_states(self, layer: int, conv: torch.Tensor, delta: torch.Tensor) -> None:
        index = self.get_slot_index()
        write(self.conv[layer], conv, index, 0)
        write(self.delta[layer], delta, index, 0)
        for row, checkpoint in enumerate(self.pending):
            if checkpoint is not None:
                checkpoint.arrays[layer] = conv[row].clone(), delta[row].clone()

    def close(self) -> None:
        super().close()
        self.slot_index = None

    def get_slot_index(self) -> Index:
        """Returns the slots of the open pass."""
        if self.slot_index is None:
            self.slot_index = self.make_slot_index(self.list_slots())
        return self.slot_index

    def make_slot_index(self, slots: Sequence[int]) -> Index:
        numbers = as_slice(np.array(slots))
        if isinstance(numbers, slice):
            return numbers
        return torch.from_numpy(numbers).to(self.like.device)

    def list_states(self) -> list[torch.Tensor]:
        return [self.conv, self.delta]

    def clear_slots(self, slots: Sequence[int]) -> None:
        index = self.make_slot_index(slots)
        self.conv[:, index] = 0
        self.delta[:, index] = 0

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        # Copy first: two slices may overlap, and torch reads while it writes.
        old = torch.tensor(sources, device=self.like.device)
        new = self.make_slot_index(targets)
        self.conv[:, new] = self.conv[:, old]
        self.delta[:, new] = self.delta[:, old]

    def copy_slot(self, slot: int) -> dict[int, Pair]:
        return {
            layer: (self.conv[layer, slot].clone(), self.delta[layer, slot].clone())
            for layer in range(self.layers)
        }

    def restore_slot(self, slot: int, arrays: dict[int, Pair]) -> None:
        for layer, (conv, delta) in arrays.items():
            self.conv[layer, slot] = conv
            self.delta[layer, slot] = delta
