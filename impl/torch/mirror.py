"""Keeps the table of cells in memory that the device can read, and updates it."""

from __future__ import annotations

import numpy as np
import torch

from lockstep.impl.shared.batch import Ints, PassRows
from lockstep.impl.shared.cells import Cells
from lockstep.impl.shared.sequence_index import Places
from lockstep.impl.torch.kernels import Kernels, Table, upload
from lockstep.impl.torch.kernels.host import HostKernels

SHORT = (1 << 31) - 1
"""Positions below this number fit into 32 bits; used as a position after all of them."""


class WatchedCells(Cells):
    """Cells that record which cells have changed.

    Every change of the table goes through one of these methods.
    """

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.changed = np.zeros(self.count, np.bool_)
        self.first, self.end = self.count, 0  # all changed cells are in [first, end)

    def add(self, batch: PassRows) -> Ints:
        return self.note(super().add(batch))

    def release(self, owner: int, cells: Places) -> None:
        super().release(owner, cells)
        if isinstance(cells, slice):
            cells = np.arange(cells.start, cells.stop)
        self.note(cells)

    def close_gap(self, owner: int, begin: int, end: int) -> Ints:
        return self.note(super().close_gap(owner, begin, end))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        super().copy_prefix(source, target, length)
        self.note(self.indexes[target].cells)

    def load(self, table: Ints) -> None:
        self.note(self.list_used())
        super().load(table)
        self.note(self.list_used())

    def note(self, cells: Ints) -> Ints:
        if len(cells):
            self.changed[cells] = True
            self.first = min(self.first, int(cells.min()))
            self.end = max(self.end, int(cells.max()) + 1)
        return cells

    def take_changed(self) -> Ints:
        """Returns the cells that changed since the last call."""
        self.settle()
        cells = np.flatnonzero(self.changed[self.first : self.end]) + self.first
        self.changed[cells] = False
        self.first, self.end = self.count, 0
        return cells


class Shared:
    """A table that the device reads from the memory of the host, without a copy."""

    def read(self, cells: Cells) -> Table:
        return Table(torch.from_numpy(cells.table))


class Mirror:
    """A copy of the table on the device, which is updated before it is read."""

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self.kernels, self.device = kernels, device
        self.cells: Cells | None = None  # the cells that `array` copies
        self.furthest = 0  # highest position so far
        self.array = torch.empty(0)

    def read(self, cells: Cells) -> Table:
        self.bring(self.take(cells))
        short_sets = len(cells.indexes) <= 32
        return Table(self.array, self.furthest < SHORT, short_sets)

    def take(self, cells: Cells) -> Ints:
        """Returns the changes that the copy does not have yet; later calls do not return
        them.

        Returns:
            [3, changes]: cell, position, bits.
        """
        assert isinstance(cells, WatchedCells)
        if cells is not self.cells:
            self.cells = cells
            self.array = torch.zeros(cells.table.shape, dtype=torch.int64).to(self.device)
        changed = cells.take_changed()
        changes = np.stack((changed, *cells.table[:, changed]))
        self.furthest = max(self.furthest, int(changes[1].max(initial=0)))
        return changes

    def bring(self, changes: Ints) -> None:
        """Applies the changes that `take` returned to the table on the device."""
        self.kernels.update(self.array, upload(changes, self.device))


def track(
    cells: Cells, kernels: Kernels, device: torch.device
) -> tuple[Cells, Shared | Mirror]:
    """Returns empty cells, and the table for a device."""
    if isinstance(kernels, HostKernels):
        return cells, Shared()
    watched = WatchedCells(cells.count, len(cells.indexes), cells.few, cells.unit)
    return watched, Mirror(kernels, device)
