"""Batches of recurrent states on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.batched import Bools
from lockstep.impl.shared.batched_state import StateBatch
from lockstep.impl.torch.kernels import upload
from lockstep.impl.torch.memory import Pair
from lockstep.impl.torch.state import StateCache


class BatchedState(StateBatch):
    """The states of a linear-recurrent layer for several requests, initially zeros.

    `read` returns the buffers, which are valid until the next change of this batch.
    """

    single = StateCache
    arrays: Pair

    def convert(self, tokens: Bools) -> torch.Tensor:
        return upload(tokens, self.arrays[0].device)

    def choose(self, array: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return array[list(rows)]

    def concatenate(self, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(arrays))

    def clear_array(self, array: torch.Tensor) -> torch.Tensor:
        return array.zero_()

    def store(self, arrays: Pair) -> None:
        for buffer, array in zip(self.arrays, arrays, strict=True):
            buffer.copy_(array)

    def make_single(self) -> StateCache:
        conv, delta = self.arrays
        forms = (1, *conv.shape[1:]), (1, *delta.shape[1:])
        return StateCache(*forms, conv.dtype, conv.device)
