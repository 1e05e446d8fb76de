"""The work on the device as Triton kernels, with one launch for each task."""

from __future__ import annotations

import torch

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.torch.kernels import (
    Pair,
    Spans,
    Table,
    batches,
    copies,
    masks,
    paged,
    tables,
    turns,
    upload,
)
from lockstep.impl.torch.rope import Rope


class TritonKernels:
    """Implements `impl.torch.kernels.Kernels` on CUDA, or on the CPU in Triton's
    interpreter.

    An index is an int64 tensor of cells. No gradient flows through a kernel.
    """

    alignment = 16

    def place(self, cells: Ints, device: torch.device) -> torch.Tensor:
        return upload(cells, device)

    def place_fixed(self, cells: torch.Tensor) -> torch.Tensor:
        return cells

    def scatter(
        self, pools: Pair, tokens: Pair, index: torch.Tensor, permuted: bool
    ) -> None:
        if torch.is_grad_enabled() and any(array.requires_grad for array in tokens):
            raise MisuseError(
                "these kernels compute no gradients; call them inside torch.no_grad()"
            )
        if tokens[0].ndim == 4:  # one layer
            pools, tokens = (
                (pools[0][None], pools[1][None]),
                (tokens[0][None], tokens[1][None]),
            )
        with on_device_of(index):
            copies.copy(pools, tokens, index, permuted, to_pool=True)

    def gather(self, pools: Pair, index: torch.Tensor, permuted: bool) -> Pair:
        if pools[0].ndim == 4:  # one layer
            keys, values = self.gather((pools[0][None], pools[1][None]), index, permuted)
            return keys[0], values[0]
        keys, values = pools
        layers, _, heads, _, dim = keys.shape
        rows = len(index)
        copied = keys.new_empty((layers, 1, heads, rows, dim))
        if permuted:
            transposed = values.new_empty((layers, 1, heads, values.shape[3], rows))
            tokens = copied, transposed.mT
        else:
            transposed = values.new_empty((layers, 1, heads, rows, values.shape[4]))
            tokens = copied, transposed
        with on_device_of(index):
            copies.copy(pools, tokens, index, permuted, to_pool=False)
        return copied, transposed

    def turn(
        self, keys: torch.Tensor, index: torch.Tensor, rope: Rope, distance: int
    ) -> None:
        with on_device_of(index):
            turns.turn(keys, index, *rope.compute_turn(distance))

    def mask(
        self,
        table: Table,
        limits: torch.Tensor,
        begin: int,
        out: torch.Tensor,
        alone: bool = False,
    ) -> None:
        with on_device_of(out):
            masks.fill(table, limits, begin, out, alone)

    def update(self, table: torch.Tensor, changes: torch.Tensor) -> None:
        with on_device_of(table):
            tables.update(table, changes)

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
        with on_device_of(firsts):
            return batches.see(firsts, starts, length, span, window, like)

    def attend(self, queries: torch.Tensor, pools: Pair, spans: Spans) -> torch.Tensor:
        with on_device_of(queries):
            return paged.attend(queries, pools, spans)


def on_device_of(array: torch.Tensor) -> torch.cuda.device_of:
    """Selects the device of the array.

    Triton launches on the current device, not on the device of the arguments.
    """
    return torch.cuda.device_of(array)
