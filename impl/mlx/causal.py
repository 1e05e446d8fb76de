"""The causal caches on MLX: one pool of cells for each layer. Returned arrays keep their
content."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from lockstep.impl.mlx.masks import CPU, allocate, convert, get_numbers, paste
from lockstep.impl.mlx.memory import Pair
from lockstep.impl.mlx.places import COLUMNS, ROWS, SMALL, Places
from lockstep.impl.mlx.rope import Rope
from lockstep.impl.shared.batch import Ints, PassRows
from lockstep.impl.shared.causal import CausalCacheBase, Pass, Sizes, round_up

FEW_NUMBERS = 8192
"""Masks with up to this count of numbers are faster to write row by row."""

BLOCK = 1 << 19
"""The number of values to rotate at a time: the intermediate arrays then take a few MiB,
which the system provides again at once. Larger memory is provided page by page, which
takes several times as long."""


class CausalCache(CausalCacheBase):
    """Keys and values of many sequences: causal, sliding, with memory, chunked.

    The arrays that `get` returns keep their content. Drop them before the next pass is
    evaluated; otherwise, the writes of that pass copy the pool of the layer. Each layer
    has a separate pool, so that no copy contains all layers.

    Args:
        sizes: see `Sizes`.
        layers: number of layers; all have the same heads and dimensions.
        rope: bases of the rotary embedding, by which keys are rotated when they move;
            layer i uses rope[i % len(rope)]. None if keys cannot move.
        dtype: the dtype of keys and values.
        mask: the dtype of masks.
        fill: the initial content of the memory.
        permuted: whether values are stored as [.., value_dim, cells].
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
        self.mask_dtype, self.numbers = mask, get_numbers(mask)
        self.few = sizes.get_small(FEW_NUMBERS)
        self.painted = self.numbers[:0]  # memory of the largest mask of a step so far
        self.axis = COLUMNS if permuted else ROWS  # the cells, in values
        self.keys: list[mx.array] = []  # of each layer: [1, heads, cells, dim]
        self.values: list[mx.array] = []
        self.places: Places | None = None

    # --- a pass -------------------------------------------------------------------------

    def add(self, batch: PassRows) -> None:
        super().add(batch)
        cells = self.get_pass().cells
        assert cells is not None
        self.places = self.place(cells)

    def place(self, cells: Ints) -> Places:
        return Places(cells, self.sizes.get_small(SMALL))

    def put(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Writes K [1, heads, rows, key_dim] and V of the open pass to one layer.

        The first put fixes heads and dimensions.
        """
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
        """Returns K, V and the mask [rows, columns] of the open pass."""
        current = self.check_get(layer)
        columns = slice(current.begin, current.end)
        keys, values = self.keys[layer][:, :, columns], self.values[layer]
        values = values[..., columns] if self.axis == COLUMNS else values[:, :, columns]
        if self.mask is None:
            self.mask = self.make_mask(current)
        # A new object for each layer: the caller may assign to its slices.
        return keys, values, self.mask[...]

    def make_mask(self, current: Pass) -> mx.array:
        """Returns the padded mask [rows, columns]: 0 where a row sees a column, else
        -inf."""
        rows = round_up(len(current.batch), self.sizes.mask_padding)
        width, sight = current.end - current.begin, current.sight
        if sight is None:
            return mx.broadcast_to(mx.array(-mx.inf, self.mask_dtype), (rows, width))
        unseen = self.numbers[0]
        if sight.batch.is_step:
            if len(self.painted) < rows * width:
                self.painted = allocate(rows * width, self.numbers)
            numbers = self.painted[: rows * width].reshape(rows, width)
            numbers.fill(unseen)
            sight.paint(numbers, current.begin)
            return convert(numbers, self.mask_dtype)
        if rows * width <= self.few:
            numbers = np.full((rows, width), unseen)
            sight.paint_each(numbers, current.begin, self.numbers)
            return convert(numbers, self.mask_dtype)
        mask_line = sight.compute_line(current.begin, width, rows, unseen)
        line = convert(mask_line.line, self.mask_dtype)
        if (
            mask_line.is_band
            and rows == len(current.batch)
            and mx.default_device() == CPU
        ):
            return mx.as_strided(line, (rows, width), (-1, 1), rows - 1)
        stretches = mx.as_strided(line, (line.size - width + 1, width), (1, 1))
        mask = mx.take(stretches, mx.array(mask_line.begins), axis=0)
        for patch in mask_line.patches:
            content = convert(self.numbers.take(patch.seen), self.mask_dtype)
            paste(mask, patch, content)
        return mask

    def allocate(self, heads: int, key_dim: int, value_dim: int) -> None:
        if self.bases is not None:
            self.rope = Rope(self.bases, self.layers, key_dim)
        cells = self.cells.count
        end = (value_dim, cells) if self.axis == COLUMNS else (cells, value_dim)
        for _ in range(self.layers):
            self.keys.append(mx.full((1, heads, cells, key_dim), self.fill, self.dtype))
            self.values.append(mx.full((1, heads, *end), self.fill, self.dtype))

    def list_arrays(self) -> list[mx.array]:
        return [*self.keys, *self.values]

    # --- between passes -----------------------------------------------------------------

    def turn(self, cells: Ints, distance: int) -> None:
        """Rotates the keys of all layers, some cells at a time."""
        if self.form is None:
            return
        heads, key_dim, _ = self.form
        block = self.sizes.get_small(BLOCK)
        step = max(1, block // (self.layers * heads * key_dim))
        cells = np.sort(cells)
        for begin in range(0, len(cells), step):
            self.turn_block(cells[begin : begin + step], distance)

    def turn_block(self, cells: Ints, distance: int) -> None:
        """Rotates the keys of all layers in one call."""
        places = self.place(cells)
        taken = mx.stack([places.read(keys, ROWS) for keys in self.keys])
        turned = self.rope.turn(taken, distance)
        # Until the result is computed, it refers to the pools, and a write copies them.
        mx.eval(turned)
        for layer, keys in enumerate(turned):
            self.write(layer, places, keys, None)

    def copy_cells(self, cells: Ints) -> Pair:
        """Returns K and V, each with a layer axis in front."""
        places = self.place(cells)
        keys = mx.stack([places.read(keys, ROWS) for keys in self.keys])
        values = [places.read(values, self.axis) for values in self.values]
        copied = keys, mx.stack(values)
        mx.eval(copied)  # as in `turn`
        return copied

    def paste_cells(self, arrays: Pair) -> None:
        if not arrays[0].size:
            return
        places = self.place(np.arange(arrays[0].shape[1 + ROWS]))
        for layer, (keys, values) in enumerate(zip(*arrays, strict=True)):
            self.write(layer, places, keys, values)
