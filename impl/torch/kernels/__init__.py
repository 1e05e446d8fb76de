"""The work of causal caches, paged caches and batches on the device, as plain torch
operations or as Triton kernels.

Pools are [layers, 1, heads, cells, dim]; permuted values are [layers, 1, heads, dim,
cells]. For a write to one layer, its pool may lack the layer axis.
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
"""A selection of cells of a pool, made by `Kernels.place`."""


@dataclass(frozen=True)
class Table:
    """The metadata of all cells, in memory that the kernels can read.

    Attributes:
        array: int64 [2, cells], positions, and sets of sequences as bits.
        short_positions: if True, all positions fit into 32 bits.
        short_sets: if True, all sets fit into 32 bits. If False, nothing is known.
    """

    array: torch.Tensor
    short_positions: bool = False
    short_sets: bool = False


@dataclass(frozen=True)
class Spans:
    """The blocks and positions to which some requests attend in a paged cache.

    Attributes:
        blocks: int32 [requests, entries], the block of each table entry; any number for
            an entry without a block.
        firsts, ends: int32 [requests]; each request attends to the positions [first,
            end).
        block: number of positions of a block.
        size: number of slots of a block, at least `block`.
        longest: the largest number of positions of a request.
    """

    blocks: torch.Tensor
    firsts: torch.Tensor
    ends: torch.Tensor
    block: int
    size: int
    longest: int


class Kernels(Protocol):
    """The work of causal and paged caches on the device, and the masks of batches.

    No method waits for the device.

    Attributes:
        alignment: the row stride of masks should be a multiple of this number of values.
    """

    alignment: int

    def place(self, cells: Ints, device: torch.device) -> Index:
        """Returns an index of distinct cells; one index serves all layers."""

    def place_fixed(self, cells: torch.Tensor) -> Index:
        """Returns an index that reads an int64 tensor on the device whenever it is used,
        and skips negative cells."""

    def scatter(self, pools: Pair, tokens: Pair, index: Index, permuted: bool) -> None:
        """Writes tokens to cells of the pools.

        Args:
            pools: see the module; for one layer, both may lack the first axis.
            tokens: [layers, 1, heads, rows, dim], of any strides and any floating type;
                for one layer, both may lack the first axis.
            index: the cell of each row.
            permuted: whether the pool of values is permuted.
        """

    def gather(self, pools: Pair, index: Index, permuted: bool) -> Pair:
        """Returns a copy of some cells, in the layout of the pools."""

    def turn(self, keys: torch.Tensor, index: Index, rope: Rope, distance: int) -> None:
        """Rotates the keys of some cells by `distance` positions, in place."""

    def mask(
        self,
        table: Table,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
        alone: bool = False,
    ) -> None:
        """Fills `out` with 0 where a row sees a column, and with -inf elsewhere.

        Args:
            table: the metadata of the cells.
            limits: int64 [3, at most rows], for each row the bit of its sequence, and the
                first and the last position that it sees. Further rows see nothing.
            begin: the cell of column 0.
            out: [rows, columns]. The gaps between its rows may be overwritten.
            alone: whether all rows belong to one sequence.
        """

    def update(self, table: torch.Tensor, changes: torch.Tensor) -> None:
        """Applies changes to `Table.array`.

        Args:
            table: int64 [2, cells].
            changes: int64 [3, changes]: cell, position, bits. The cells are distinct;
                negative cells are skipped.
        """

    def see(
        self,
        firsts: torch.Tensor,
        starts: torch.Tensor,
        length: int,
        span: tuple[int, int],
        window: int | None,
        like: torch.Tensor,
        cursor: int | None = None,
    ) -> torch.Tensor:
        """Returns which columns of a batch's pool the queries of an update see.

        Args:
            firsts: int64 [rows], the position of each row's first query; a query with a
                negative position is padding and sees the same columns as position 0.
            starts: int64 [rows], the column of position 0.
            length: number of queries of a row.
            span: the columns (begin, end).
            window: the number of columns of a ring, where columns wrap; None for no ring.
            like: a tensor with the dtype of the mask: bool for True where a query sees a
                column, or a floating type for 0 there and -inf elsewhere.
            cursor: the column of the first query, if it is the same for all rows and no
                row is padded on the left.

        Returns:
            [rows, 1, length, columns].
        """

    def attend(self, queries: torch.Tensor, pools: Pair, spans: Spans) -> torch.Tensor:
        """Computes attention of one token of each request, through its table.

        Args:
            queries: [1, query heads, requests, key_dim]; several query heads may share
                one head of K.
            pools: K and V [1, heads, slots, dim].
            spans: the spans of the requests; each request attends to at least one
                position.

        Returns:
            [1, query heads, requests, value_dim].
        """


def choose(device: torch.device) -> Kernels:
    """Returns Triton kernels on CUDA if they can be imported, else plain torch."""
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
    """Returns the array as a tensor; for CUDA, in pinned memory, from which the device
    can copy asynchronously.

    torch keeps pinned memory until a non-blocking copy is done.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def upload(array: Ints, device: torch.device) -> torch.Tensor:
    """Copies the array to the device, without waiting for the copy."""
    return pin(array, device).to(device, non_blocking=True)
