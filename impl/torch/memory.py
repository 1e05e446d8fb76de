"""Buffers of tokens on torch, and views of ranges of them."""

from __future__ import annotations

from typing import Self

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


FEWEST, MOST = 4, 64
"""Number of token views made in one call: it doubles from FEWEST up to MOST as long as
the views are used."""


class Buffer:
    """A tensor [batch, heads, room, dim], and views of some of its tokens.

    Most of the time of a step is spent on its views. A view by strides takes half as long
    as one by an index, which torch has to parse. Each step writes to a view of the next
    token; these take a quarter of the time if many are made in one call.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.batch, self.heads, self.room, self.dim = tensor.shape
        self.strides, self.start = tensor.stride(), tensor.storage_offset()
        self.first, self.ahead = 0, ()  # views of the tokens from `first` on

    @classmethod
    def allocate(cls, like: torch.Tensor, room: int, fill: float | None) -> Self:
        """Returns a new buffer.

        Args:
            like: has the batch, heads, dim, dtype and device of the buffer.
            room: number of tokens.
            fill: initial content; None for uninitialized memory.
        """
        batch, heads, _, dim = like.shape
        tensor = like.new_empty((batch, heads, room, dim))
        return cls(tensor if fill is None else tensor.fill_(fill))

    def take(self, begin: int, end: int) -> torch.Tensor:
        """Returns the tokens [begin, end): the same as `tensor[:, :, begin:end]`."""
        size = (self.batch, self.heads, end - begin, self.dim)
        return self.tensor.as_strided(size, self.strides, self.start + begin * self.dim)

    def take_token(self, slot: int) -> torch.Tensor:
        """Returns one token, [batch, heads, 1, dim]; not to be used with gradients."""
        at = slot - self.first
        if not 0 <= at < len(self.ahead):
            count = 2 * len(self.ahead) if at == len(self.ahead) else 0
            count = min(max(FEWEST, count), MOST, self.room - slot)
            self.first, at = slot, 0
            self.ahead = self.take(slot, slot + count).split(1, dim=2)
        return self.ahead[at]


def has_gradient(buffers: tuple[Buffer, Buffer], arrays: Pair) -> bool:
    """Returns whether a gradient flows through a write of the arrays."""
    return torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (buffers[0].tensor, buffers[1].tensor, *arrays)
    )


def copy_both(targets: Pair, arrays: Pair) -> None:
    """Copies both arrays in one call, which has no gradient."""
    torch._foreach_copy_(targets, arrays)


def clone(pair: Pair) -> Pair:
    return pair[0].clone(), pair[1].clone()


def get_bytes(pair: Pair) -> int:
    return pair[0].nbytes + pair[1].nbytes
