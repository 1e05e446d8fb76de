"""The recurrent state on torch: two buffers of fixed size, which are written in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.memory import Memory
from lockstep.impl.shared.state import StateCacheBase
from lockstep.impl.torch.memory import Pair, clone


class StateMemory(Memory):
    """conv and delta after all tokens so far; methods ignore positions."""

    def __init__(self, conv: torch.Tensor, delta: torch.Tensor) -> None:
        super().__init__()
        self.buffers = conv, delta

    def read(self, begin: int, end: int) -> Pair:
        return self.buffers

    def copy(self, begin: int, end: int) -> Pair:
        return clone(self.buffers)

    def write(self, arrays: Pair) -> None:
        for buffer, array in zip(self.buffers, arrays, strict=True):
            buffer.copy_(array)

    def clear(self) -> None:
        for buffer in self.buffers:
            buffer.zero_()


class StateCache(StateCacheBase):
    """The state of a linear-recurrent layer, batch 1, initially zeros.

    `read` returns the buffers, which are valid until the next write, restore or free.

    Args:
        conv: shape [1, conv_width - 1, channels].
        delta: shape [1, heads, key_dim, value_dim], always float32.
        dtype: the dtype of conv.
        device: the device of both.
    """

    memory: StateMemory

    def __init__(
        self,
        conv: Sequence[int],
        delta: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.memory = StateMemory(
            torch.zeros(*conv, dtype=dtype, device=device),
            torch.zeros(*delta, dtype=torch.float32, device=device),
        )

    def store(self, conv: object, delta: object) -> None:
        assert isinstance(conv, torch.Tensor) and isinstance(delta, torch.Tensor)
        self.memory.write((conv, delta))

    def clone(self) -> StateCache:
        """Returns an independent cache with the same state."""
        conv, delta = self.memory.buffers
        copied = StateCache(conv.shape, delta.shape, conv.dtype, conv.device)
        copied.memory.write((conv, delta))
        copied.offset = self.offset
        return copied
