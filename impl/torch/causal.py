"""The causal family on torch: one pool of cells, written in place, read as views."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from impl.shared.batch import Ints
from impl.shared.causal import CausalCacheBase, Pass, Sizes, round_up
from impl.torch.rope import Rope

Pair = tuple[torch.Tensor, torch.Tensor]
FLOAT32 = torch.empty(0)
"""Stands for float32 on the CPU."""


class CausalCache(CausalCacheBase):
    """Keys and values of many sequences: causal, sliding, with memory, chunked.

    `get` returns views: they hold until the next forward, put, remove or load.

    layers: how many; all have the same heads and dimensions. rope: the bases by which
    keys turn when they move, taken in turn by the layers; None if keys cannot move.
    like: has the dtype and the device of keys and values. mask: of masks. fill: what
    fresh memory holds. permuted: values are kept as [.., value_dim, cells].
    """

    def __init__(
        self,
        sizes: Sizes,
        layers: int = 1,
        rope: Sequence[float] | None = (10_000.0,),
        like: torch.Tensor = FLOAT32,
        mask: torch.Tensor = FLOAT32,
        fill: float = 0.0,
        permuted: bool = False,
    ) -> None:
        super().__init__(sizes, layers, rope is not None)
        self.bases = rope
        self.like, self.mask_like = like, mask
        self.fill, self.permuted = fill, permuted
        self.keys = self.values = like  # [layers, 1, heads, cells, dim]
        self.index: slice | torch.Tensor = slice(0)

    # --- a pass -------------------------------------------------------------------------

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """K [1, heads, rows, key_dim] and V of the open pass, for one layer. The first
        put fixes heads and dimensions."""
        current = self.check_put(layer, keys.shape, values.shape)
        if current.cells is None:
            return
        index = self.index
        if isinstance(index, slice):
            self.keys[layer][:, :, index] = keys
            if self.permuted:
                self.values[layer][..., index] = values.mT
            else:
                self.values[layer][:, :, index] = values
            return
        self.keys[layer].index_copy_(2, index, keys.to(self.like.dtype))
        values = values.to(self.like.dtype)
        if self.permuted:
            self.values[layer].index_copy_(3, index, values.mT)
        else:
            self.values[layer].index_copy_(2, index, values)

    def get(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """K, V and the mask [rows, columns] of the open pass."""
        current = self.check_get(layer)
        begin, end = current.begin, current.end
        keys, values = self.keys[layer][:, :, begin:end], self.values[layer]
        values = values[..., begin:end] if self.permuted else values[:, :, begin:end]
        if self.mask is None:
            self.mask = self.make_mask(current)
        return keys, values, self.mask

    def add(self, batch: object) -> None:
        super().add(batch)  # type: ignore[arg-type]
        self.index = self.make_index(self.get_pass().cells)

    def make_index(self, cells: Ints | None) -> slice | torch.Tensor:
        """The cells, as a slice if they are neighbours: that is one copy, no scatter."""
        if cells is None:
            return slice(0)
        first, last = int(cells[0]), int(cells[-1])
        if last - first + 1 == len(cells):
            return slice(first, last + 1)
        return torch.from_numpy(cells).to(self.like.device)

    def make_mask(self, current: Pass) -> torch.Tensor:
        """[rows, columns], both padded: 0 where a row sees a column, -inf elsewhere."""
        rows = len(current.batch)
        padded = round_up(rows, self.sizes.mask_padding)
        width = current.end - current.begin
        mask = self.mask_like.new_full((padded, width), -torch.inf)
        if current.cells is None:
            return mask
        device = self.mask_like.device
        limits = torch.from_numpy(self.compute_limits(current.batch)).to(device)
        table = self.cells.table[:, current.begin : current.end]
        positions, bits = torch.from_numpy(table).to(device)
        owner, low, high = limits[:, :, None]  # each [rows, 1]
        seen = (bits & owner) != 0  # [rows, columns]
        seen &= positions >= low
        seen &= positions <= high
        mask[:rows].masked_fill_(seen, 0)
        return mask

    def allocate(self, heads: int, key_dim: int, value_dim: int) -> None:
        pool = (self.layers, 1, heads, self.cells.count)
        shape = (*pool[:3], value_dim, pool[3]) if self.permuted else (*pool, value_dim)
        self.keys = self.like.new_full((*pool, key_dim), self.fill)
        self.values = self.like.new_full(shape, self.fill)
        if self.bases is not None:
            self.rope = Rope(self.bases, self.layers, key_dim, self.like.device)

    # --- between passes -----------------------------------------------------------------

    def turn(self, cells: Ints, distance: int) -> None:
        """One pass over the keys of all layers."""
        if self.form is None:
            return
        index = torch.from_numpy(cells).to(self.like.device)
        turned = self.rope.turn(self.keys.index_select(3, index), distance)
        self.keys.index_copy_(3, index, turned)

    def copy_cells(self, cells: Ints) -> Pair:
        index = torch.from_numpy(cells).to(self.like.device)
        axis = 4 if self.permuted else 3
        return self.keys.index_select(3, index), self.values.index_select(axis, index)

    def paste_cells(self, arrays: Pair) -> None:
        keys, values = arrays
        count = keys.shape[3]
        self.keys[:, :, :, :count] = keys
        if self.permuted:
            self.values[..., :count] = values
        else:
            self.values[:, :, :, :count] = values
