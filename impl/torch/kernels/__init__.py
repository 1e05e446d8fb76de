"""The device work of the causal family, as plain torch operations or as Triton kernels.

Pools are [layers, 1, heads, cells, dim]; permuted values [layers, 1, heads, dim, cells].
To write to one layer, its pool may come without the axis of layers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lockstep.impl.shared.batch import Ints
from lockstep.impl.torch.rope import Rope

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""

Index = Any
"""Some cells of a pool, as `Kernels.place` makes it."""


@dataclass(frozen=True)
class Table:
    """The metadata of all cells where the kernels can read it.

    array: int64 [2, cells], positions and sets of sequences as bits. short_positions,
    short_sets: whether those of all cells fit into 32 bits; False says nothing.
    """

    array: torch.Tensor
    short_positions: bool = False
    short_sets: bool = False


class Kernels(Protocol):
    """The device work of a causal cache; nothing waits for the device.

    alignment: rows of masks had best be a multiple of so many numbers apart.
    """

    alignment: int

    def place(self, cells: Ints, device: torch.device) -> Index:
        """Some cells, made once and used for all layers. Each cell is there once."""

    def place_fixed(self, cells: torch.Tensor) -> Index:
        """An index that is read from an int64 tensor on the device when it is used; a
        cell below 0 is skipped."""

    def scatter(self, pools: Pair, tokens: Pair, index: Index, permuted: bool) -> None:
        """Puts tokens [layers, 1, heads, rows, dim], of any strides and of any floating
        type, into cells of the pools; for one layer, both may lack the first axis.
        permuted: of the values' pool."""

    def gather(self, pools: Pair, index: Index, permuted: bool) -> Pair:
        """A copy of some cells, in the form of the pools."""

    def turn(self, keys: torch.Tensor, index: Index, rope: Rope, distance: int) -> None:
        """Turns the keys of some cells by so many positions, in place."""

    def mask(
        self,
        table: Table,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
        alone: bool = False,
    ) -> None:
        """Fills out [rows, columns] with 0 where a row sees a column, -inf elsewhere.

        Column 0 is cell `begin`. limits: int64 [3, up to rows]: for each row the bit of
        its sequence, and the first and the last position it sees. Other rows see
        nothing. What lies between two rows of `out` may be written too. alone: all rows
        are of one sequence.
        """

    def update(self, table: torch.Tensor, changes: torch.Tensor) -> None:
        """Brings changes into `Table.array`. changes: int64 [3, some]: cell, position,
        bits; each cell once; a cell below 0 is none."""


def choose(device: torch.device) -> Kernels:
    """Chooses for a device: Triton on CUDA, if it can be imported; else plain torch."""
    if device.type == "cpu":
        from lockstep.impl.torch.kernels.host import HostKernels

        return HostKernels()
    if device.type == "cuda":
        with suppress(ImportError):
            from lockstep.impl.torch.kernels.fused import TritonKernels

            return TritonKernels()
    from lockstep.impl.torch.kernels.plain import PlainKernels

    return PlainKernels()


def pin(array: Ints, device: torch.device) -> torch.Tensor:
    """The array where a device can fetch it while the host goes on. torch keeps pinned
    memory until a copy that does not block is done."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def upload(array: Ints, device: torch.device) -> torch.Tensor:
    """The array on the device, for which the host does not wait."""
    return pin(array, device).to(device, non_blocking=True)
