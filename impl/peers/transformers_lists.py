"""Adapters to caches of transformers that consist of two caches of the contract.

They are `EncoderDecoderCache`, and the layers with attention and a recurrent state. A
model reads and writes the two caches separately; `generate` calls the containing cache.
The adapters check no call.

A model writes the cross cache once, with the tokens of the encoder, and the self cache in
each pass. In the contract, all caches of a list get the same tokens, so the cross cache
also gets new tokens in each pass.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from transformers.cache_utils import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    StaticCache,
)

from lockstep.harness.backends import Backend
from lockstep.impl.peers.transformers import (
    COMMON,
    ROOM,
    SHARE,
    Fields,
    declare_backend,
    declare_kind,
    make_model,
)
from lockstep.impl.peers.transformers_batched import overflow
from lockstep.impl.peers.transformers_batches import Batch, RecurrentBatch, Rows
from lockstep.impl.peers.transformers_layers import (
    ROOM_BESIDE,
    Config,
    Layer,
    RecurrentLayer,
    get_hybrid,
)

FULL, STATES = {"kind": "batch-kv"}, {"kind": "batch-state"}
RINGS = [{"kind": "batch-rotating", "window": window} for window in (4, 1, 2, 3, 5, 8)]
DECODERS = [FULL, FULL], *([ring, FULL] for ring in RINGS)
HYBRIDS = [STATES, FULL], *([STATES, ring] for ring in RINGS)

FIXED = {"open", "update", "clone", "free", "select"}
ROWS = FIXED | {"filter", "repeat"}

BESIDE: Fields = {**COMMON, "caches": HYBRIDS, "value_dim": (4, 6)}
"""A state has no values of dimension 0."""


class ListLayer:
    """Adapts a cache of one sequence to the interface of a list.

    Args:
        cache: the cache of transformers, with one layer.
        parts: the caches of the contract of which it consists.
    """

    def __init__(self, cache: Any, parts: Sequence[Any]) -> None:
        self.cache, self.parts = cache, parts

    def clone(self) -> Self:
        """Copies the cache by `copy.deepcopy`, which the documentation recommends to
        reuse a prompt."""
        return copy.deepcopy(self)

    def free(self) -> None:
        for cache in self.parts:
            cache.free()


class ListBatch(Rows, ListLayer):
    """Adapts a cache of several rows to the interface of a batch of lists."""

    parts: Sequence[Batch]

    def pad_left(self, padding: Sequence[int]) -> None:
        for cache in self.parts:
            cache.pad_left(padding)

    def count_rows(self) -> int:
        return self.parts[0].count_rows()

    def keep(self, rows: Sequence[int]) -> None:
        for cache in self.parts:
            cache.keep(rows)

    def clear(self) -> None:
        for cache in self.parts:
            cache.clear()


# --- encoder and decoder ----------------------------------------------------------------


def encoder_decoder() -> Backend:
    """Declares `EncoderDecoderCache` with two `DynamicCache`: of full decoders (BART, T5,
    Whisper) and of sliding decoders (T5Gemma).

    `trim` is not declared, because `crop` changes only self attention.
    """
    kinds = {"batch-list": declare_kind(ROWS, {**COMMON, "caches": DECODERS})}
    opener, name = _open_dynamic_pair, "transformers-batched-encoder-decoder"
    return declare_backend(name, kinds, opener, "forever", SHARE, contract="batched")


def static_encoder_decoder() -> Backend:
    """Declares `EncoderDecoderCache` with two `StaticCache`. Its only operation on rows
    is `reorder_cache`."""
    config = {**COMMON, **ROOM, "caches": DECODERS}
    kinds = {"batch-list": declare_kind(FIXED, config, overflow(), inputs="kept")}
    opener, name = _open_static_pair, "transformers-batched-static-encoder-decoder"
    return declare_backend(name, kinds, opener, "until-write", SHARE, contract="batched")


def _open_dynamic_pair(config: Config) -> ListLayer | ListBatch:
    models = [make_model(cache) for cache in config["parts"]]
    return _open_pair([DynamicCache(config=model) for model in models], models, config)


def _open_static_pair(config: Config) -> ListLayer | ListBatch:
    models, room = [make_model(cache) for cache in config["parts"]], config["step"]
    caches = [StaticCache(config=model, max_cache_len=room) for model in models]
    return _open_pair(caches, models, config)


def _open_pair(
    caches: Sequence[Cache], models: Sequence[Any], config: Config
) -> ListLayer | ListBatch:
    both, rows = EncoderDecoderCache(*caches), config["rows"]
    halves = both.self_attention_cache, both.cross_attention_cache
    pairs = [*zip(halves, models, strict=True)]
    if rows is None:
        return ListLayer(both, [Layer(half, model) for half, model in pairs])
    return ListBatch(both, [Batch(half, model, rows) for half, model in pairs])


# --- a state and attention --------------------------------------------------------------


def hybrid() -> Backend:
    """Declares `DynamicCache` with layers that have attention and a recurrent state.
    These layers cannot be cropped."""
    kinds = {"batch-list": declare_kind(ROWS, BESIDE)}
    opener, name = _open_hybrid, "transformers-batched-hybrid-list"
    return declare_backend(name, kinds, opener, "until-write", SHARE, contract="batched")


def static_hybrid() -> Backend:
    """Declares `StaticCache` with layers that have attention and a recurrent state.

    The `max_cache_len` of full attention is large.
    """
    config, wide = {**BESIDE, **ROOM}, overflow(**{"window - step": [1, None]})
    kinds = {"batch-list": declare_kind(FIXED, config, wide, inputs="kept")}
    opener, name = _open_static_hybrid, "transformers-batched-static-hybrid-list"
    return declare_backend(name, kinds, opener, "until-write", SHARE, contract="batched")


def _open_hybrid(config: Config) -> ListLayer | ListBatch:
    model = _make_hybrid(config)
    return _open_both(DynamicCache(config=model), model, config)


def _open_static_hybrid(config: Config) -> ListLayer | ListBatch:
    model, is_full = _make_hybrid(config), config["parts"][1]["window"] is None
    room = ROOM_BESIDE if is_full else config["step"]
    return _open_both(StaticCache(config=model, max_cache_len=room), model, config)


def _make_hybrid(config: Config) -> Any:
    attention = config["parts"][1]
    return make_model(attention, get_hybrid(attention))


def _open_both(cache: Cache, model: Any, config: Config) -> ListLayer | ListBatch:
    (state, _), rows = config["parts"], config["rows"]
    if rows is None:
        return ListLayer(
            cache, [RecurrentLayer(cache, model, state), Layer(cache, model)]
        )
    states = RecurrentBatch(cache, model, rows, state)
    return ListBatch(cache, [states, Batch(cache, model, rows)])
