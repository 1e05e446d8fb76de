"""The device work of the causal family, as plain torch operations or as Triton kernels.

Pools are [layers, 1, heads, cells, dim]; permuted values [layers, 1, heads, dim, cells].
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from impl.shared.batch import Ints
from impl.torch.rope import Rope

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""

Index = Any
"""Some cells of a pool, as `place` makes it."""


class Kernels(Protocol):
    """What a causal cache does on its device; nothing waits for the device."""

    def place(self, cells: Ints, device: torch.device) -> Index:
        """Some cells, made once and used for all layers. Each cell is there once."""

    def scatter(self, pools: Pair, tokens: Pair, index: Index, permuted: bool) -> None:
        """Puts tokens [layers, 1, heads, rows, dim], of any strides and of any floating
        type, into cells of the pools. permuted: of the values' pool."""

    def gather(self, pools: Pair, index: Index, permuted: bool) -> Pair:
        """A copy of some cells, in the form of the pools."""

    def turn(self, keys: torch.Tensor, index: Index, rope: Rope, distance: int) -> None:
        """Turns the keys of some cells by so many positions, in place."""

    def mask(
        self,
        table: torch.Tensor,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
    ) -> None:
        """Fills out [rows, columns] with 0 where a row sees a column, -inf elsewhere.

        table: int64 [2, cells], positions and sets of sequences as bits, of all cells;
        column 0 is cell `begin`. limits: int64 [3, up to rows]: for each row the bit of
        its sequence, and the first and the last position it sees. Other rows see
        nothing.
        """


def choose(device: torch.device) -> Kernels:
    """What suits a device: Triton on CUDA, if it can be imported; else plain torch."""
    from impl.torch.kernels.plain import PlainKernels

    return PlainKernels()
