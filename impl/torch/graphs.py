"""Passes with fixed work on the device, so that a CUDA graph can replay this work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lockstep.impl.shared.batch import Ints
from lockstep.impl.shared.causal import Pass, round_up
from lockstep.impl.shared.cells import mark_limits
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.recurrent import RecurrentCacheBase
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.kernels import Pair, Table, pin
from lockstep.impl.torch.kernels.plain import PlainKernels
from lockstep.impl.torch.mirror import Mirror

NOTHING = -1
"""The value of unused entries: no cell; in the limits, a row that sees nothing."""


class DoesNotFitError(MisuseError):
    """A pass is larger than the captured pass.

    The pass stays open: use the `put` and `get` of the cache, or a step with more rows or
    columns.
    """


class Inputs:
    """The inputs that change from pass to pass, in one array, so that one copy sends
    them.

    Unused entries are NOTHING.

    Attributes:
        cells: [rows], the cells to which the rows are written.
        limits: [3, rows], see `Kernels.mask`.
        changes: [3, changes], see `Kernels.update`.
    """

    def __init__(self, rows: int, changes: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        size = 4 * rows + 3 * changes
        self.array = torch.full((size,), NOTHING, dtype=torch.int64, device=device)
        self.cells = self.array[:rows]
        self.limits = self.array[rows : 4 * rows].view(3, rows)
        self.changes = self.array[4 * rows :].view(3, changes)

    def send(self, cells: Ints, limits: Ints, changes: Ints) -> None:
        """Copies the inputs to the device, without waiting for the copy."""
        rows = self.rows
        array = np.full(len(self.array), NOTHING, np.int64)
        array[: len(cells)] = cells
        array[rows : 4 * rows].reshape(3, rows)[:, : len(cells)] = limits
        sent = array[4 * rows :].reshape(self.changes.shape)
        sent[:, : changes.shape[1]] = changes
        self.array.copy_(pin(array, self.device), non_blocking=True)


class FixedStep:
    """Passes of up to `rows` rows that see only the first `columns` cells.

        step = FixedStep(cache, rows, columns)
        step.capture(decode)                # which calls step.put and step.get
        while ...:
            cache.forward(positions, sequences)
            step.run()

    For each pass, the host updates its tables and sends one small array with the cells of
    the rows, the limits of each row, and the changes of the cell table. All other work
    uses fixed addresses: the device applies the changes, makes the mask over all
    `columns` and replays the captured work. Between two steps any operation of the cache
    is allowed, including passes with the `put` and `get` of the cache.

    On the CPU the same work is done without a graph.

    Args:
        cache: a cache without recurrent states, which have no fixed addresses.
        rows: maximum number of rows of a pass.
        columns: number of cells that a pass can see.
        changes: maximum number of table changes that are sent with a step; if there are
            more changes, all of them are sent before the step. None for twice the rows.

    Attributes:
        mask: [rows, columns], the rows padded as in the masks of the cache.

    Raises:
        RuntimeError: a CUDA graph needs Triton.
        MisuseError: the cache has recurrent states, or `rows` or `columns` is out of
            range.
    """

    def __init__(
        self, cache: CausalCache, rows: int, columns: int, changes: int | None = None
    ) -> None:
        if isinstance(cache, RecurrentCacheBase):
            raise MisuseError(
                "a recurrent cache cannot be captured: its states have no fixed places"
                " in memory"
            )
        if cache.like.is_cuda and isinstance(cache.kernels, PlainKernels):
            raise RuntimeError("a CUDA graph of a cache needs Triton")
        for name, number, most in (
            ("rows", rows, cache.sizes.batch),
            ("columns", columns, cache.cells.count),
        ):
            if not 0 < number <= most:
                raise MisuseError(
                    f"the number of {name} must be 1 … {most}, not {number}"
                )
        self.cache, self.rows, self.columns = cache, rows, columns
        table = cache.table.read(cache.cells)
        # Later positions may need 64 bits, so a graph cannot rely on 32 bits.
        self.table = Table(table.array, short_sets=table.short_sets)
        room = 2 * rows if changes is None else changes
        self.inputs = Inputs(rows, room, cache.like.device)
        self.index = cache.kernels.place_fixed(self.inputs.cells)
        padded = round_up(rows, cache.sizes.mask_padding)
        self.mask = cache.allocate_mask(padded, columns)
        self.work: Callable[[], Any] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None

    # --- the captured work --------------------------------------------------------------

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes K [1, heads, `rows`, key_dim] and V to one layer.

        Rows beyond the rows of the pass are not stored.
        """
        if not 0 <= layer < self.cache.layers:
            raise MisuseError(
                f"there is no layer {layer}; the layers are 0 … {self.cache.layers - 1}"
            )
        self.cache.check_tokens(self.rows, keys.shape, values.shape)
        self.cache.written[layer] = True
        self.write(self.cache.pools[layer], (keys, values))

    def put_all(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes K [layers, 1, heads, `rows`, key_dim] and V to all layers at once."""
        self.cache.check_layers(keys.shape, values.shape)
        self.cache.check_tokens(self.rows, keys.shape[1:], values.shape[1:])
        self.cache.written[:] = [True] * self.cache.layers
        self.write((self.cache.keys, self.cache.values), (keys, values))

    def write(self, pools: Pair, tokens: Pair) -> None:
        self.cache.kernels.scatter(pools, tokens, self.index, self.cache.permuted)

    def get(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns K and V of the first `columns` cells, and the mask.

        The tensors are always the same.
        """
        if not 0 <= layer < self.cache.layers or not self.cache.written[layer]:
            raise MisuseError(f"layer {layer} has no content; put K and V into it first")
        return *self.cache.view(layer, 0, self.columns), self.mask

    def execute(self, work: Callable[[], Any]) -> Any:
        """Does all work of a step on the device."""
        kernels = self.cache.kernels
        if isinstance(self.cache.table, Mirror):
            kernels.update(self.table.array, self.inputs.changes)
        kernels.mask(self.table, self.inputs.limits, 0, self.mask)
        return work()

    # --- a step -------------------------------------------------------------------------

    def capture(self, work: Callable[[], Any]) -> None:
        """Captures a step.

        Args:
            work: a function with the rest of the step, on fixed addresses. On CUDA it is
                called twice, for the warm-up and for the capture, with rows that store
                no token and see no token.
        """
        self.work = work
        if not self.cache.like.is_cuda:
            return
        self.inputs.array.fill_(NOTHING)
        with torch.cuda.device(self.cache.like.device):
            stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                self.execute(work)
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.result = self.execute(work)
        self.graph = graph

    def run(self) -> Any:
        """Runs the open pass.

        Returns:
            The result of the captured work. On CUDA, each call returns the same tensors.

        Raises:
            DoesNotFitError: the pass has more rows than the step, or sees more cells.
                Nothing is done.
            MisuseError: no pass is open, or it only reserves memory.
        """
        if self.work is None:
            raise MisuseError("nothing was captured; call capture first")
        current = self.cache.get_pass()
        self.check(current)
        self.send(current)
        if self.graph is None:
            return self.execute(self.work)
        self.graph.replay()
        return self.result

    def check(self, current: Pass) -> None:
        rows = len(current.batch)
        if current.cells is None:
            raise MisuseError(
                "the open pass only reserves memory: there is nothing to replay"
            )
        if rows > self.rows:
            raise DoesNotFitError(
                f"the pass has {rows} rows, but the graph was captured for {self.rows};"
                " capture again with more rows"
            )
        if current.end > self.columns:
            raise DoesNotFitError(
                f"the pass sees cells up to {current.end}, but the graph was captured"
                f" for {self.columns} columns; capture again with more columns"
            )

    def send(self, current: Pass) -> None:
        cache, changes = self.cache, np.empty((3, 0), np.int64)
        if isinstance(cache.table, Mirror):
            changes = cache.table.take(cache.cells)
            if changes.shape[1] > self.inputs.changes.shape[1]:
                cache.table.bring(changes)
                changes = changes[:, :0]
        assert current.cells is not None
        assert current.sight is not None
        limits = mark_limits(current.batch.sequences, current.sight.limits)
        self.inputs.send(current.cells, limits, changes)
