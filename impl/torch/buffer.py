"""Buffers of tokens on torch, and stretches of them."""

from __future__ import annotations

from typing import Self

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


FEWEST, MOST = 4, 64
"""Tokens whose views are made at a time: twice as many as before, as long as they are
used."""


class Buffer:
    """A tensor [batch, heads, room, dim], and views of some of its tokens.

    What a step takes is mostly what its views take. By strides one costs half as much as
    by an index, for there is no index to read; and views of the next tokens, one of which
    each step writes to, cost a quarter if many are made in one call.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.batch, self.heads, self.room, self.dim = tensor.shape
        self.strides = tensor.stride()
        self.first, self.ahead = 0, ()  # views of the tokens from `first` on

    @classmethod
    def allocate(cls, like: torch.Tensor, room: int, fill: float | None) -> Self:
        """Batch, heads, dim, dtype and device are those of `like`. fill: what it holds at
        first; None leaves it as it comes."""
        batch, heads, _, dim = like.shape
        tensor = like.new_empty((batch, heads, room, dim))
        return cls(tensor if fill is None else tensor.fill_(fill))

    def take(self, begin: int, end: int) -> torch.Tensor:
        """The tokens [begin, end): the same as `tensor[:, :, begin:end]`."""
        size = (self.batch, self.heads, end - begin, self.dim)
        return self.tensor.as_strided(size, self.strides, begin * self.dim)

    def take_token(self, place: int) -> torch.Tensor:
        """One of them: [batch, heads, 1, dim]. Not for where a gradient flows."""
        at = place - self.first
        if not 0 <= at < len(self.ahead):
            count = 2 * len(self.ahead) if at == len(self.ahead) else 0
            count = min(max(FEWEST, count), MOST, self.room - place)
            self.first, at = place, 0
            self.ahead = self.split(place, place + count)
        return self.ahead[at]

    def split(self, begin: int, end: int) -> tuple[torch.Tensor, ...]:
        return self.take(begin, end).split(1, dim=2)


class TwinBuffer(Buffer):
    """One whose second half is to hold the same as the first."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.room //= 2

    def split(self, begin: int, end: int) -> tuple[torch.Tensor, ...]:
        """Each the token in one slot of either half: [batch, heads, 2, dim]."""
        return self.take_both(begin, end).unbind(dim=3)

    def take_both(self, begin: int, end: int) -> torch.Tensor:
        """The slots [begin, end) of either half: [batch, heads, 2, tokens, dim]."""
        size = (self.batch, self.heads, 2, end - begin, self.dim)
        strides = (*self.strides[:2], self.room * self.dim, self.dim, 1)
        return self.tensor.as_strided(size, strides, begin * self.dim)


def has_gradient(buffers: tuple[Buffer, Buffer], arrays: Pair) -> bool:
    """Whether one flows through a write of the arrays."""
    return torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (buffers[0].tensor, buffers[1].tensor, *arrays)
    )


def copy_both(places: Pair, arrays: Pair) -> None:
    """In one call, which has no gradient."""
    torch._foreach_copy_(places, arrays)


def clone(pair: Pair) -> Pair:
    return pair[0].clone(), pair[1].clone()


def get_bytes(pair: Pair) -> int:
    return pair[0].nbytes + pair[1].nbytes
