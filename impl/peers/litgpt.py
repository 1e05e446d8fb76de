"""The adapter to litgpt's `KVCache`, and its declarations.

`GPT.forward` selects the rows of a causal mask by `input_pos`, and cuts this mask and K
and V to `input_pos_maxp1` columns; `CausalSelfAttention.forward` cuts the mask of a
sliding layer to the columns of the ring. Callers count positions (`generate.base`), and
go back by a lower `input_pos` (`generate.speculative_decoding`). Line numbers are those
of `litgpt/model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.engines.layers import load_litgpt
from lockstep.impl.peers.static import PLAIN, ROOM, declare_static, overflow

litgpt = load_litgpt()

CHUNK = Duty(
    {"op": "update", "length - window": [1, None]},
    "update of more tokens than the window: the exception of KVCache asks for shorter"
    " chunks",
)


class Layer:
    """The cache of one layer.

    Args:
        config: a complete config; the field "step" is the `max_seq_length`.
        compiled: whether a compiled model passes no `input_pos_maxp1`, so that K and V
            have all columns.
    """

    def __init__(self, compiled: bool, config: Mapping[str, Any]) -> None:
        self.compiled = compiled
        self.offset = 0
        length, window = config["step"], config["window"]
        columns = min(length, window or length)  # build_kv_cache (line 610)
        shape = 1, config["heads"], columns
        self.cache = litgpt.KVCache(
            (*shape, config["key_dim"]),
            (*shape, config["value_dim"]),
            dtype=getattr(torch, config["dtype"]),
            is_sliding_window=window is not None,
            sliding_window_size=window,
        )
        self.mask_cache = litgpt.build_mask_cache(length)

    def make_mask(self, length: int, rows: int) -> Mask:
        """Selects the rows (line 137) and cuts the columns (lines 146 and 523)."""
        self.end = self.offset + length
        self.positions = torch.arange(self.offset, self.end)
        mask = litgpt.batched_index_select(self.mask_cache, 2, self.positions)
        columns = self.cache.max_cache_len
        keeps_all = self.compiled and not self.cache.is_sliding_window
        return mask[..., : columns if keeps_all else min(self.end, columns)]

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Writes K and V, and cuts them to `input_pos_maxp1` (line 528)."""
        keys, values = self.cache(self.positions, keys, values)
        self.offset = self.end
        if self.compiled:
            return keys, values
        return keys[..., : self.end, :], values[..., : self.end, :]

    def trim(self, count: int) -> int:
        trimmed = min(count, self.offset)
        self.offset -= trimmed
        return trimmed


def litgpt_cache() -> Backend:
    """Declares `KVCache` with the calls of `generate`: full layers as kv, and sliding
    layers, which have a ring, as rotating."""
    return _backend("litgpt", False)


def litgpt_compiled() -> Backend:
    """Declares `KVCache` with the calls of a compiled model, whose K and V have all
    columns."""
    return _backend("litgpt-compiled", True, 4)


def _backend(name: str, compiled: bool, share: int = 1) -> Backend:
    full = overflow("update of more than max_seq_length tokens: GPT.forward refuses it")
    config = {**PLAIN, **ROOM}
    kinds = {
        "kv": Kind(frozenset({"update", "trim"}), config, duties=(full,)),
        "rotating": Kind(frozenset({"update"}), config, duties=(full, CHUNK)),
    }
    return declare_static("litgpt", name, kinds, partial(Layer, compiled), share)
