"""transformers' paged cache with two other forms of inputs: padded inputs, and tables of
blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from lockstep.impl.peers.transformers_pages import Pages, Pair


class PaddedPages(Pages):
    """The paged cache with batches of fixed sizes, as compiled models have them."""

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        spare_rows = self.prepare()["input_ids"].shape[1] - keys.shape[2]
        padding = (0, 0, 0, spare_rows)
        pad = torch.nn.functional.pad
        return super().update(layer, pad(keys, padding), pad(values, padding))


class TablePages(Pages):
    """The paged cache where a step of single tokens uses tables of blocks.

    On a GPU, a flash attention kernel writes and reads these tables; here,
    `write_and_read` replaces this kernel.
    """

    def try_schedule(self, request: str, count: int) -> bool:
        """Schedules with `max_blocks_per_request` set to 0 if a request in the step needs
        indices. The library's scheduler reads this setting to decide whether to use
        tables, and limits the reads of a step by indices."""
        most = self.cache.max_blocks_per_request
        is_decode = all(item.is_decode for item in self.step.values())
        self.cache.max_blocks_per_request = most * is_decode
        planned = super().try_schedule(request, count)
        self.cache.max_blocks_per_request = most
        return planned

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        inputs = dict(self.prepare())
        if inputs["block_table"] is None:
            return super().update(layer, keys, values)
        keys, values = self.cache.update(keys, values, self.layers[layer], inputs)
        ends = inputs["cu_seq_lens_k"].tolist()
        lengths = [end - begin for begin, end in pairwise(ends)]
        tables = inputs["block_table"].tolist()
        read = [
            write_and_read(inputs[name], new, tables, lengths)
            for name, new in (("k_cache", keys), ("v_cache", values))
        ]
        return list(zip(*read, strict=True))


def write_and_read(
    pages: torch.Tensor,
    new: torch.Tensor,
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> list[torch.Tensor]:
    """Writes and reads as `flash_attn_with_kvcache` does, for K or for V.

    Args:
        pages: the pages, [pages, tokens of a page, heads, dim].
        new: the last token of each request, [1, heads, requests, dim].
        tables: for each request, the numbers of its pages.
        lengths: for each request, the number of its tokens, including the new token.
    """
    size = pages.shape[1]
    read = []
    for number, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        page, offset = divmod(length - 1, size)
        pages[table[page], offset] = new[0, :, number]
        slots = pages[table[: page + 1]].flatten(0, 1)[:length]
        read.append(slots.transpose(0, 1)[None])
    return read
