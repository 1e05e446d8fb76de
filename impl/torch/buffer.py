"""Buffers of tokens on torch, and stretches of them."""

from __future__ import annotations

from typing import Self

import torch

Pair = tuple[torch.Tensor, torch.Tensor]

# Looked up once: a step is so short that this counts.
copy_both, is_grad_enabled = torch._foreach_copy_, torch.is_grad_enabled


class Buffer:
    """A tensor [batch, heads, room, dim], and views of some of its tokens.

    A step makes four such views, and what they cost is half of what it takes: by strides
    one costs half as much as by an index, for there is no index to read.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.view = tensor, tensor.as_strided
        self.batch, self.heads, self.room, self.dim = tensor.shape
        self.strides = tensor.stride()
        self.token = (self.batch, self.heads, 1, self.dim)

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
        return self.view(size, self.strides, begin * self.dim)

    def take_token(self, place: int) -> torch.Tensor:
        """One of them: [batch, heads, 1, dim]."""
        return self.view(self.token, self.strides, place * self.dim)


class TwinBuffer(Buffer):
    """One whose second half is to hold the same as the first."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.pair = (self.batch, self.heads, 2, self.dim)
        half = self.room // 2 * self.dim
        self.pair_strides = (*self.strides[:2], half, 1)

    def take_pair(self, slot: int) -> torch.Tensor:
        """The token in this slot of either half: [batch, heads, 2, dim]."""
        return self.view(self.pair, self.pair_strides, slot * self.dim)

    def take_both(self, begin: int, end: int) -> torch.Tensor:
        """The slots [begin, end) of either half: [batch, heads, 2, tokens, dim]."""
        size = (*self.pair[:3], end - begin, self.dim)
        strides = (*self.pair_strides[:3], self.dim, 1)
        return self.view(size, strides, begin * self.dim)


def copy_into(places: Pair, pair: Pair) -> None:
    """In one call, but where a gradient flows: that call has none."""
    if is_grad_enabled() and any(one.requires_grad for one in (*places, *pair)):
        places[0].copy_(pair[0])
        places[1].copy_(pair[1])
    else:
        copy_both(places, pair)


def clone(pair: Pair) -> Pair:
    return pair[0].clone(), pair[1].clone()


def get_bytes(pair: Pair) -> int:
    return pair[0].nbytes + pair[1].nbytes
