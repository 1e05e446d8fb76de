"""Declares the backends for the paged cache of transformers' continuous batching.

`transformers_pages` has the adapter; `transformers_tables` has two variants of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    LlamaConfig,
    LogitsProcessorList,
)
from transformers.generation.continuous_batching import utils
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import (
    FullAttentionCacheAllocator,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.input_outputs import (
    ContinuousBatchingIOs,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.peers.paged import full, sliding
from lockstep.impl.peers.transformers import SHARE, declare_backend
from lockstep.impl.peers.transformers_layers import Config
from lockstep.impl.peers.transformers_pages import Pages
from lockstep.impl.peers.transformers_tables import PaddedPages, TablePages

# For each cache, the library reads this from the memory maps of the process. The read
# takes longer than most programs, and its result does not change.
utils._get_allowed_numa_nodes = cache(utils._get_allowed_numa_nodes)

MOST_REQUESTS = 8
"""The largest number of requests in a step, and so in a program."""

OPERATIONS = frozenset(
    {"open", "schedule", "run", "accept", "preempt", "free", "fork", "evict", "reset"}
)

DUTIES = (
    Duty(
        {"op": "open", "named": [1, 1]},
        "open in a namespace: the hash of a block knows tokens alone",
    ),
    Duty(
        {"op": "evict", "count": [1, 255]},
        "evict of some of the cached blocks: evict_cached_blocks drops all",
    ),
    Duty(
        {"op": "reset", "held": [1, None]},
        "reset while a request holds slots: it frees those of all requests",
    ),
)


# --- what is declared -------------------------------------------------------------------


FULL = ([full(4)], [full(8)], [full(5)], [full(4, 2)], [full(6, 3)], [full(4, 4)])
SLIDING = (
    *([sliding(4, 3)], [sliding(4, 4)], [sliding(4, 5)], [sliding(4, 8)]),
    *([sliding(4, 1)], [sliding(4, 2)], [sliding(5, 7, 2)], [sliding(8, 5)]),
    *([sliding(6, 10)], [sliding(4, 6, 3)]),
)
HYBRID = (
    *([full(4), sliding(4, 5)], [sliding(4, 3), full(4)], [full(4), sliding(4, 4, 2)]),
    *([sliding(5, 7, 2), full(5, 2)], [full(8), sliding(8, 5)], [full(4), sliding(4, 1)]),
    *([sliding(4, 6, 4), full(4, 2)], [full(4), sliding(4, 8, 3)]),
)
"""Pages have 4 tokens at least, as `ContinuousBatchingConfig` says, and one size. All
layers of a type share one table. A full layer has no more of them than a sliding one, so
that its blocks are the smallest; see `Pages.pool`."""

COMMON = {
    "lookahead": (0,),
    "key_dim": (4,),
    "value_dim": (4,),
    "hash_block": (None,),
}
"""K and V have one dimension. With 4 numbers, sectors have one block or several."""

RINGS = {**COMMON, "data": ("backend",), "prefix_cache": (False,)}
"""With a sliding layer, requests hit no block. Forks still share full layers' blocks."""

KINDS: Mapping[str, Kind] = {
    "paged-full": Kind(
        OPERATIONS,
        {**COMMON, "groups": FULL, "data": ("backend", "tags")},
        duties=DUTIES,
        tells=frozenset({"pool", "entries"}),
    ),
    "paged-sliding": Kind(
        OPERATIONS,
        {**RINGS, "groups": SLIDING},
        duties=DUTIES,
        tells=frozenset({"pool"}),
    ),
    "paged-hybrid": Kind(
        OPERATIONS,
        {**RINGS, "groups": HYBRID},
        duties=DUTIES,
        tells=frozenset({"pool"}),
    ),
}


def transformers_paged() -> Backend:
    """Declares `PagedAttentionCache` with the default scheduler, which reserves 15 % of
    the blocks for requests that have begun."""
    return _declare("transformers-paged", _open_paged)


def transformers_paged_padded() -> Backend:
    """Declares `PagedAttentionCache` with inputs of fixed sizes, and with the scheduler
    that reserves no blocks."""
    return _declare("transformers-paged-padded", _open_padded, SHARE)


def transformers_paged_decode() -> Backend:
    """Declares `PagedAttentionCache` with tables of blocks in steps of single tokens,
    which are used on a GPU.

    If a model has a sliding layer, no layer has tables; sliding layers are therefore not
    declared.
    """
    config = {**KINDS["paged-full"].config, "data": ("backend",)}
    kinds = {"paged-full": replace(KINDS["paged-full"], config=config)}
    return _declare("transformers-paged-decode", _open_decode, SHARE, kinds)


def _declare(
    name: str, opener: Any, share: int = 1, kinds: Mapping[str, Kind] = KINDS
) -> Backend:
    backend = declare_backend(name, kinds, opener, "until-write", share, contract="paged")
    return replace(backend, poison=True)


# --- opening ----------------------------------------------------------------------------


def _open_paged(config: Config) -> Pages:
    return _open(config, Pages, ContinuousBatchingConfig())


def _open_padded(config: Config) -> Pages:
    options = ContinuousBatchingConfig(
        scheduler_type="prefill_first",
        # Compiled models get padded inputs. The first pass of a model would compile it.
        varlen_compile_config=CompileConfig(backend="eager"),
        q_padding_interval_size=4,
        kv_padding_interval_size=16,
        allow_block_sharing=False,
    )
    return _open(config, PaddedPages, options)


def _open_decode(config: Config) -> Pages:
    most = -(-config["max_length"] // config["groups"][0]["block"])
    return _open(
        config, TablePages, ContinuousBatchingConfig(max_blocks_per_request=most)
    )


def _open(config: Config, pages: type[Pages], options: ContinuousBatchingConfig) -> Pages:
    """Makes the parts of a `ContinuousBatchProcessor` that need no model."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    groups, dtype = config["groups"], getattr(torch, config["dtype"])
    options.page_size = groups[0]["block"]
    options.num_blocks = _model_blocks(config, dtype)
    options.max_batch_tokens = MOST_REQUESTS * config["max_length"]
    options.max_requests_per_batch = MOST_REQUESTS
    options.max_memory_percent = 0.9
    order = _model_layers(groups)
    types = [f"{group['type']}_attention" for group in groups]
    if "sliding_attention" not in types:
        options.allow_block_sharing = config["prefix_cache"]
    model = _model(config, [types[group] for group, _ in order])
    device = torch.device("cpu")
    cache = PagedAttentionCache(model, options, device, SimpleNamespace(tp_size=1), dtype)
    if config["poison"]:
        next(iter(cache.cache_allocators.values())).cache_tensor.fill_(math.nan)
    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList())
    inputs = ContinuousBatchingIOs(cache, model, options, device, dtype, processors)
    scheduler = SCHEDULER_MAPPING[options.scheduler_type](
        cache, options.safety_margin, MOST_REQUESTS
    )
    runner = ModelRunner(processors, options, inputs, cache, False, False)
    layers = [order.index(layer) for layer in sorted(order)]
    return pages(cache, scheduler, runner, types, layers)


def _model_layers(groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Returns the group and the number of each layer of a model with alternating types of
    layers."""
    most = max(group["layers"] for group in groups)
    return [
        (number, layer)
        for layer in range(most)
        for number, group in enumerate(groups)
        if layer < group["layers"]
    ]


def _model(config: Config, types: Sequence[str]) -> Any:
    widths = [group["width"] for group in config["groups"] if "width" in group]
    heads, dim = config["heads"], config["key_dim"]
    return LlamaConfig(
        num_hidden_layers=len(types),
        layer_types=list(types),
        sliding_window=widths[0] if widths else None,
        hidden_size=heads * dim,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=dim,
        vocab_size=8,
        attn_implementation="flash_attention_2",
    )


def _model_blocks(config: Config, dtype: torch.dtype) -> int:
    """Returns the number of blocks with which a model can use config["blocks"] blocks.

    A sector belongs to one type of layers until all its blocks are free. Therefore, a
    model with two types of layers gets as many sectors as blocks.
    """
    groups, blocks = config["groups"], config["blocks"]
    page = FullAttentionCacheAllocator.get_bytes_per_page(
        config["heads"], config["key_dim"], dtype, groups[0]["block"]
    )
    sizes = [page * group["layers"] for group in groups]
    sector = math.lcm(*sizes, 128)
    return blocks if len(groups) == 1 else -(-blocks * sector // sum(sizes))
