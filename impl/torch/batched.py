"""Batches of full and of sliding-window caches on torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lockstep.impl.shared.batched import Bools
from lockstep.impl.shared.batched_tokens import Span, Starts, TokenBatch
from lockstep.impl.torch.kernels import choose, upload
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.masks import BOOLEAN, make_additive
from lockstep.impl.torch.memory import Pair, make_band
from lockstep.impl.torch.pool import RowPool
from lockstep.impl.torch.rotating import RotatingCache


class BatchedCache(TokenBatch):
    """Attention over the sequences of several requests, one row for each request.

    `update` and `state` return views of the pool, which are valid until the next change
    of this batch. The lengths of the rows stay on the device, so a step sends no data to
    it.

    Args:
        rows: number of rows, which are empty.
        window: number of tokens that a query sees, including itself; None for all tokens.
        step, fill, mask: see `impl.torch.kv`. If `fill` is None, the memory is cleared.
    """

    singles = KVCache, RotatingCache
    pool: RowPool

    def __init__(
        self,
        rows: int,
        window: int | None = None,
        step: int = 256,
        fill: float | None = None,
        mask: torch.Tensor = BOOLEAN,
    ) -> None:
        super().__init__(rows, window, step, fill, mask)
        self.pool = RowPool(rows, window, step, 0 if fill is None else fill)
        self.device_lengths: tuple[tuple[int, ...], torch.Tensor] | None = None
        self.begins: tuple[Starts, torch.Tensor] | None = None
        self.kernels = choose(mask.device)
        self.columns = torch.empty(0, dtype=torch.int64, device=mask.device)

    def get_lengths(self) -> torch.Tensor:
        """Returns the lengths, [rows, 1, 1, 1], on the device of the masks."""
        if self.device_lengths is None or self.device_lengths[0] != self.lengths:
            lengths = upload(np.array(self.lengths), self.mask.device)
            self.device_lengths = self.lengths, lengths.view(-1, 1, 1, 1)
        return self.device_lengths[1]

    def get_starts(self, starts: Starts) -> torch.Tensor:
        """Returns the starts, [rows, 1, 1, 1], on the device of the masks."""
        if self.begins is None or self.begins[0] != starts:
            begins = upload(np.array(starts), self.mask.device)
            self.begins = starts, begins.view(-1, 1, 1, 1)
        return self.begins[1]

    def get_ends(self) -> torch.Tensor:
        return self.get_lengths() + self.get_starts(self.pool.starts)

    def advance(self, counts: Sequence[int], length: int) -> None:
        lengths = self.lengths
        super().advance(counts, length)
        last, count = self.device_lengths, counts[0]
        if last is not None and last[0] is lengths and min(counts) == max(counts):
            self.device_lengths = self.lengths, last[1] + count

    def get_positions(self, length: int) -> torch.Tensor:
        """Returns the positions of the next `length` columns, [rows, length]."""
        return self.place(length).view(-1, length)

    def place(self, length: int) -> torch.Tensor:
        """Returns the positions of the next `length` columns, [rows, 1, length, 1]."""
        places = self.count(length).view(-1, 1)
        if self.left is None:
            return self.get_lengths() + places
        padding = upload(np.array(self.left), self.mask.device)
        return places - padding.view(-1, 1, 1, 1)

    def count(self, end: int) -> torch.Tensor:
        """Returns the numbers from 0 to `end` - 1."""
        if end > len(self.columns):
            self.columns = torch.arange(end + self.step, device=self.columns.device)
        return self.columns[:end]

    def make_causal(self, length: int) -> torch.Tensor:
        return make_band(length, length, self.lengths[0], None, self.mask)

    def make_seen(self, length: int, span: Span, starts: Starts) -> torch.Tensor:
        is_even = self.left is None and starts is self.pool.starts
        return self.kernels.see(
            self.place(1).view(-1),
            self.get_starts(starts).view(-1),
            length,
            span,
            self.window if span == (0, self.window) else None,
            self.mask,
            self.pool.find_cursor(self.lengths) if is_even else None,
        )

    def make_joint(self, length: int, span: Span) -> torch.Tensor:
        window, positions = self.window, self.place(length)
        assert window is not None
        queries, last = positions.clamp(min=0), self.get_lengths() - 1
        columns = self.count(span[1])[span[0] :]
        ages = (last + self.get_starts(self.pool.starts) - columns) % window
        cells_seen = torch.cat((last - ages, positions.mT), dim=3)  # negative: no token
        seen = (cells_seen <= queries) & (cells_seen > (queries - window).clamp(min=-1))
        if self.mask.dtype == torch.bool:
            return seen
        return make_additive(seen, self.mask.dtype)

    def blank(self, arrays: Pair, tokens: Bools) -> Pair:
        padding = upload(~tokens, self.mask.device)[:, None, :, None]
        return arrays[0].masked_fill(padding, 0), arrays[1].masked_fill(padding, 0)
