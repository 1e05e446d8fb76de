"""The causal family on MLX: a pool of cells for each layer, handed out as values."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from impl.mlx.memory import Pair
from impl.mlx.places import COLUMNS, ROWS, Places
from impl.mlx.rope import Rope
from impl.shared.batch import Batch, Ints
from impl.shared.causal import CausalCacheBase, Pass, Sizes, round_up

NOWHERE = np.iinfo(np.int64).max
"""A position that no row sees, not even one that looks ahead."""


class CausalCache(CausalCacheBase):
    """Keys and values of many sequences: causal, sliding, with memory, chunked.

    `get` returns values: they hold forever. Drop them before the next pass is evaluated,
    or its writes copy the whole pool for their sake. A layer has arrays of its own, so
    that this concerns one layer at a time.

    layers: how many; all have the same heads and dimensions. rope: the bases by which
    keys turn when they move, taken in turn by the layers; None if keys cannot move.
    dtype: of keys and values. mask: of masks. fill: what fresh memory holds. permuted:
    values are kept as [.., value_dim, cells].
    """

    def __init__(
        self,
        sizes: Sizes,
        layers: int = 1,
        rope: Sequence[float] | None = (10_000.0,),
        dtype: mx.Dtype = mx.float32,
        mask: mx.Dtype = mx.float32,
        fill: float = 0.0,
        permuted: bool = False,
    ) -> None:
        super().__init__(sizes, layers, rope is not None)
        self.bases = rope
        self.dtype, self.fill = dtype, fill
        self.seen, self.unseen = mx.array(0, mask), mx.array(-mx.inf, mask)
        self.axis = COLUMNS if permuted else ROWS  # the cells, in values
        self.keys: list[mx.array] = []  # of each layer: [1, heads, cells, dim]
        self.values: list[mx.array] = []
        self.places: Places | None = None

    # --- a pass -------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        super().add(batch)
        cells = self.get_pass().cells
        assert cells is not None
        self.places = Places(cells)

    def put(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """K [1, heads, rows, key_dim] and V of the open pass, for one layer. The first
        put fixes heads and dimensions."""
        current = self.check_put(layer, keys.shape, values.shape)
        if current.cells is None:
            return
        assert self.places is not None
        if self.axis == COLUMNS:
            values = values.swapaxes(2, 3)
        self.write(layer, self.places, keys, values)

    def write(
        self, layer: int, places: Places, keys: mx.array, values: mx.array | None
    ) -> None:
        self.keys[layer] = places.write(self.keys[layer], keys, ROWS)
        if values is not None:
            self.values[layer] = places.write(self.values[layer], values, self.axis)

    def get(self, layer: int) -> tuple[mx.array, mx.array, mx.array]:
        """K, V and the mask [rows, columns] of the open pass."""
        current = self.check_get(layer)
        columns = slice(current.begin, current.end)
        keys, values = self.keys[layer][:, :, columns], self.values[layer]
        values = values[..., columns] if self.axis == COLUMNS else values[:, :, columns]
        if self.mask is None:
            self.mask = self.make_mask(current)
        # A new object for each layer: assigning to a slice of one stays outside.
        return keys, values, self.mask[...]

    def make_mask(self, current: Pass) -> mx.array:
        """[rows, columns], both padded: 0 where a row sees a column, -inf elsewhere."""
        batch = current.batch
        rows = round_up(len(batch), self.sizes.mask_padding)
        width = current.end - current.begin
        if current.cells is None:
            return mx.broadcast_to(self.unseen, (rows, width))
        # Rows of padding see up to position -1.
        limits = np.full((3, rows, 1), -1)
        limits[:, : len(batch), 0] = self.compute_limits(batch)
        owner, low, high = limits
        positions, bits = self.cells.table[:, current.begin : current.end]
        alone = len(batch.owners) == 1
        if alone:
            # Whose a cell is is the same for all rows: no need to ask for each of them.
            positions = np.where(bits & owner[0], positions, NOWHERE)
        places = mx.array(positions)
        seen = places <= mx.array(high)  # [rows, columns]
        if not alone:
            seen &= (mx.array(bits) & mx.array(owner)) != 0
        if low.max() > 0:
            seen &= places >= mx.array(low)
        return mx.where(seen, self.seen, self.unseen)

    def allocate(self, heads: int, key_dim: int, value_dim: int) -> None:
        if self.bases is not None:
            self.rope = Rope(self.bases, self.layers, key_dim)
        cells = self.cells.count
        end = (value_dim, cells) if self.axis == COLUMNS else (cells, value_dim)
        for _ in range(self.layers):
            self.keys.append(mx.full((1, heads, cells, key_dim), self.fill, self.dtype))
            self.values.append(mx.full((1, heads, *end), self.fill, self.dtype))

    # --- between passes -----------------------------------------------------------------

    def turn(self, cells: Ints, distance: int) -> None:
        """One pass over the keys of all layers."""
        if self.form is None:
            return
        cells = np.sort(cells)
        index = mx.array(cells)
        taken = mx.stack([mx.take(keys, index, axis=ROWS) for keys in self.keys])
        turned = self.rope.turn(taken, distance)
        # While it is being computed it refers to the pools: a write would copy them.
        mx.eval(turned)
        places = Places(cells)
        for layer, keys in enumerate(turned):
            self.write(layer, places, keys, None)

    def copy_cells(self, cells: Ints) -> Pair:
        """K and V with an axis of layers in front."""
        index = mx.array(cells)
        keys = mx.stack([mx.take(keys, index, axis=ROWS) for keys in self.keys])
        values = [mx.take(values, index, axis=self.axis) for values in self.values]
        copied = keys, mx.stack(values)
        mx.eval(copied)  # as in turn
        return copied

    def paste_cells(self, arrays: Pair) -> None:
        if not arrays[0].size:
            return
        places = Places(np.arange(arrays[0].shape[1 + ROWS]))
        for layer, (keys, values) in enumerate(zip(*arrays, strict=True)):
            self.write(layer, places, keys, values)
