"""Variants of the adapter to transformers' paged cache: with padded inputs, and with
tables of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from lockstep.impl.peers.transformers_pages import Pages, Pair


class PaddedPages(Pages):
    """The paged cache with inputs of fixed sizes, which compiled models need."""

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        spare_rows = self.prepare()["input_ids"].shape[1] - keys.shape[2]
        padding = (0, 0, 0, spare_rows)
        pad = torch.nn.functional.pad
        return super().update(layer, pad(keys, padding), pad(values, padding))


class TablePages(Pages):
    """The paged cache with tables of blocks in steps of single tokens.

    On a GPU, a flash attention kernel writes to and reads from the blocks of these
    tables; `write_and_read` replaces this kernel.
    """

    def try_schedule(self, request: str, count: int) -> bool:
        """Schedules a request, with `max_blocks_per_request` set to 0 if some request of
        the step needs indices.

        By this setting, the library's scheduler decides whether to use tables; without
        tables, it limits the number of tokens that a step reads.
        """
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
    """Writes new tokens of K or V and returns all tokens, like `flash_attn_with_kvcache`.

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
