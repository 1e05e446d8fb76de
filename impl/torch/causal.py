"""The causal caches on torch: a pool of cells that is written in place and read
as views."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.impl.shared.batch import Ints, PassRows
from lockstep.impl.shared.causal import CausalCacheBase, Pass, Sizes, round_up
from lockstep.impl.shared.cells import mark_limits
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.torch.kernels import Index, Kernels, Pair, choose, upload
from lockstep.impl.torch.kernels.plain import COLUMNS, ROWS, write
from lockstep.impl.torch.masks import HostMasks
from lockstep.impl.torch.mirror import Shared, track
from lockstep.impl.torch.rope import Rope

FEW_NUMBERS = 2048
"""Masks with up to this count of numbers are faster to write row by row."""

FLOAT32 = torch.empty(0)
"""The default of `like` and `mask`: float32 on the CPU."""


class CausalCache(CausalCacheBase):
    """Keys and values of many sequences: causal, sliding, with memory, chunked.

    `get` returns views, which are valid until the next forward, put, remove or load.

    Args:
        sizes: see `Sizes`.
        layers: number of layers; all have the same heads and dimensions.
        rope: bases of the rotary embedding, by which keys are rotated when they move;
            layer i uses rope[i % len(rope)]. None if keys cannot move.
        like: a tensor with the dtype and the device of keys and values.
        mask: a tensor with the dtype and the device of masks.
        fill: the initial content of the memory.
        permuted: whether values are stored as [.., value_dim, cells].
        kernels: the kernels for the work on the device; None to choose them by the
            device.
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
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(sizes, layers, rope is not None)
        self.bases = rope
        self.like, self.mask_like = like, mask
        self.fill, self.permuted = fill, permuted
        self.masks = HostMasks(mask.dtype, sizes.get_small(FEW_NUMBERS))
        self.keys = self.values = like  # [layers, 1, heads, cells, dim]
        self.pools: list[Pair] = []  # views of these, one pair for each layer
        self.kernels = kernels or choose(like.device)
        self.cells, self.table = track(self.cells, self.kernels, like.device)
        self.index: Index = None  # of the pass's cells, made on first use

    # --- a pass -------------------------------------------------------------------------

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes K [1, heads, rows, key_dim] and V of the open pass to one layer.

        The first put fixes heads and dimensions.
        """
        current = self.check_put(layer, keys.shape, values.shape)
        self.write(current, self.pools[layer], keys, values)

    def put_all(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes to all layers at once; on CUDA, in one launch.

        Args:
            keys: [layers, 1, heads, rows, key_dim].
            values: [layers, 1, heads, rows, value_dim].

        Raises:
            MisuseError: see `put`.
        """
        self.check_layers(keys.shape, values.shape)
        for layer in range(self.layers):
            current = self.check_put(layer, keys.shape[1:], values.shape[1:])
        self.write(current, (self.keys, self.values), keys, values)

    def check_layers(self, keys: Sequence[int], values: Sequence[int]) -> None:
        for shape, name in ((keys, "K"), (values, "V")):
            if len(shape) != 5 or shape[0] != self.layers:
                raise MisuseError(
                    f"{name} has shape {list(shape)}, but must have [{self.layers}, 1,"
                    f" heads, rows, dim], because there are {self.layers} layers"
                )

    def write(
        self, current: Pass, pools: Pair, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        if current.cells is None:
            return
        if self.index is None:
            self.index = self.kernels.place(current.cells, self.like.device)
        self.kernels.scatter(pools, (keys, values), self.index, self.permuted)
        if self.keys.requires_grad:
            self.view_layers()

    def get(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns K, V and the mask [rows, columns] of the open pass."""
        current = self.check_get(layer)
        if self.mask is None:
            self.mask = self.make_mask(current)
        return *self.view(layer, current.begin, current.end), self.mask

    def view(self, layer: int, begin: int, end: int) -> Pair:
        """Returns K and V of the cells in [begin, end)."""
        width = end - begin
        keys, values = self.pools[layer]
        axis = COLUMNS if self.permuted else ROWS
        return keys.narrow(ROWS, begin, width), values.narrow(axis, begin, width)

    def add(self, batch: PassRows) -> None:
        super().add(batch)
        self.index = None

    def make_mask(self, current: Pass) -> torch.Tensor:
        """Returns the padded mask [rows, columns]: 0 where a row sees a column, else
        -inf."""
        padded = round_up(len(current.batch), self.sizes.mask_padding)
        width = current.end - current.begin
        if current.sight is None:  # of maximal size: not worth keeping
            return self.allocate_mask(padded, width).fill_(-torch.inf)
        if isinstance(self.table, Shared):
            return self.masks.make(current.sight, current.begin, width, padded)
        mask = self.allocate_mask(padded, width)
        limits = mark_limits(current.batch.sequences, current.sight.limits)
        table, alone = self.table.read(self.cells), len(current.batch.owners) == 1
        bounds = upload(limits, mask.device)
        self.kernels.mask(table, bounds, current.begin, mask, alone)
        return mask

    def allocate_mask(self, rows: int, columns: int) -> torch.Tensor:
        apart = round_up(columns, self.kernels.alignment)
        return self.mask_like.new_empty((rows, apart))[:, :columns]

    def allocate(self, heads: int, key_dim: int, value_dim: int) -> None:
        pool = (self.layers, 1, heads, self.cells.count)
        shape = (*pool[:3], value_dim, pool[3]) if self.permuted else (*pool, value_dim)
        self.keys = self.like.new_full((*pool, key_dim), self.fill)
        self.values = self.like.new_full(shape, self.fill)
        self.view_layers()
        if self.bases is not None:
            self.rope = Rope(self.bases, self.layers, key_dim, self.like.device)

    def list_arrays(self) -> list[torch.Tensor]:
        return [self.keys, self.values]

    def view_layers(self) -> None:
        """Makes the views of the layers. Without gradients, makes them once; with
        gradients, makes them again after each write.

        Torch 2.13 refuses to write to a view after a write to a part of the view.
        """
        layers = range(self.layers)
        self.pools = [(self.keys[layer], self.values[layer]) for layer in layers]

    # --- between passes -----------------------------------------------------------------

    def turn(self, cells: Ints, distance: int) -> None:
        """Rotates the keys of all layers in one call."""
        if self.form is None:
            return
        index = self.kernels.place(cells, self.like.device)
        self.kernels.turn(self.keys, index, self.rope, distance)
        if self.keys.requires_grad:
            self.view_layers()

    def copy_cells(self, cells: Ints) -> Pair:
        index = self.kernels.place(cells, self.like.device)
        return self.kernels.gather((self.keys, self.values), index, self.permuted)

    def paste_cells(self, arrays: Pair) -> None:
        keys, values = arrays
        first = slice(0, keys.shape[ROWS])
        write(self.keys, keys, first, ROWS)
        write(self.values, values, first, COLUMNS if self.permuted else ROWS)
        if self.keys.requires_grad:
            self.view_layers()
