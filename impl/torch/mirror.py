"""The table of cells where a device can read it, and what of it the device lacks."""

from __future__ import annotations

import numpy as np
import torch

from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.cells import Cells
from lockstep.impl.torch.kernels import Kernels, Table, upload
from lockstep.impl.torch.kernels.plain import PlainKernels

SHORT = (1 << 31) - 1
"""No position before it needs more than 32 bits, and it lies behind all of these."""


class WatchedCells(Cells):
    """Cells that know which of them have changed.

    Whatever changes the table does so in one of these methods.
    """

    def __init__(self, count: int, sequences: int) -> None:
        super().__init__(count, sequences)
        self.changed = np.zeros(count, np.bool_)
        self.first, self.end = count, 0  # what changed lies in between

    def add(self, batch: Batch) -> Ints:
        return self.note(super().add(batch))

    def release(self, owner: int, cells: Ints) -> None:
        super().release(owner, cells)
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
        """The cells that changed since this was asked last."""
        cells = np.flatnonzero(self.changed[self.first : self.end]) + self.first
        self.changed[cells] = False
        self.first, self.end = self.count, 0
        return cells


class Shared:
    """For a device that reads the host's memory: there is but one table."""

    def read(self, cells: Cells) -> Table:
        return Table(torch.from_numpy(cells.table))


class Mirror:
    """A copy on the device, which gets what has changed before it is read."""

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self.kernels, self.device = kernels, device
        self.cells: Cells | None = None  # whose copy it is
        self.furthest = 0  # position
        self.array = torch.empty(0)

    def read(self, cells: Cells) -> Table:
        changes = self.take(cells)
        if changes.shape[1]:
            self.bring(changes)
        short_sets = len(cells.indexes) <= 32
        return Table(self.array, self.furthest < SHORT, short_sets)

    def take(self, cells: Cells) -> Ints:
        """[3, some]: what of the cells the copy lacks: cell, position, bits. From now
        on it counts as brought."""
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
    """The cells, empty, in the form that the table for a device needs."""
    if device.type == "cpu" and isinstance(kernels, PlainKernels):
        return cells, Shared()
    return WatchedCells(cells.count, len(cells.indexes)), Mirror(kernels, device)
