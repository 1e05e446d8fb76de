"""Opens SGLang's prefix caches and pools, like a server with given settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from lockstep.impl.peers.engines.sglang import load_sglang, open_unified
from lockstep.impl.peers.sglang_facts import Layout

Config = Mapping[str, Any]
sglang = load_sglang()

MOST_REQUESTS = 6
STATES_OF_REQUEST = 3
"""The number of states that a server has for each running request
(`MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`)."""


class Options(NamedTuple):
    """The settings of a server.

    Attributes:
        core: the core of the tree, "python" or "rust"; None selects the tree of
            `RadixCache`.
        salts: True: a namespace becomes a `cache_salt`. False: it becomes an `extra_key`.
        drafts: the `speculative_algorithm`: "NGRAM", "EAGLE", or None.
        keeps_prompt: whether a model with only sliding layers attends to the whole prompt
            (`is_prefill_aware_swa`), so that its window does not slide over the prompt.
    """

    core: str | None = "python"
    salts: bool = True
    drafts: str | None = None
    keeps_prompt: bool = True


class Storage(sglang.BaseSWAKVPool):  # type: ignore[misc]
    """Replaces the memory of K and V of full and sliding layers, which the
    harness holds."""

    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = None
    get_state_buf_infos = None

    def __init__(self) -> None:
        self.swa_kv_pool = None

    def register_mapping(self, mapping: Any) -> None:
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, places: Any) -> Any:
        return self.full_to_swa_index_mapping[places]


def open_slots(config: Config, layout: Layout) -> Any:
    """Returns the pool of token slots of the attention layers."""
    page, size = layout.page, count_slots(config, layout)
    options: tuple[Any, ...] = (torch.float32, "cpu", Storage(), False)
    if layout.full is None:
        return sglang.PureSWATokenToKVPoolAllocator(size, page, *options)
    if layout.sliding is not None:
        return sglang.SWATokenToKVPoolAllocator(size, size, page, *options)
    if page > 1:
        return sglang.PagedTokenToKVPoolAllocator(size, page, *options)
    return sglang.TokenToKVPoolAllocator(size, *options)


def count_slots(config: Config, layout: Layout) -> int:
    """Counts the slots of each pool."""
    size: int = (config["blocks"] + count_reserved(config, layout.page)) * layout.page
    if layout.full is None:  # the whole prompt is kept, although windows are shorter
        size *= -(-config["max_length"] // config["groups"][0]["width"])
    return size


def count_reserved(config: Config, page: int) -> int:
    """Returns how many pages a server has in addition to `blocks`.

    For a request with drafts, a server reserves twice as many slots as a step needs
    (`get_alloc_reserve_per_decode`).
    """
    drafts, groups = config["lookahead"], len(config["groups"])
    most = min(MOST_REQUESTS, config["blocks"] // groups)
    spare = -(-(drafts + 2) // page) - (groups - 1)
    return most * spare if drafts else 0


def open_rows(config: Config, layout: Layout) -> Any:
    """Returns the `ReqToTokenPool`, which has the tables of all requests, with the pool
    of states."""
    length = config["max_length"] + 2 * (config["lookahead"] + 1) + layout.page
    if layout.state is None:
        return sglang.ReqToTokenPool(MOST_REQUESTS, length, "cpu", False)
    params = SimpleNamespace(
        shape=SimpleNamespace(conv=[(1, 2)], temporal=(1, 1, 2)),
        dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
        layers=[0],
        is_kda=False,
    )
    return sglang.HybridReqToTokenPool(
        size=config["blocks"] // STATES_OF_REQUEST,
        mamba_size=config["blocks"],
        mamba_spec_state_size=0,
        max_context_len=length,
        device="cpu",
        enable_memory_saver=False,
        cache_params=params,
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=False,
        enable_overlap_schedule=False,
    )


def open_tree(
    config: Config, layout: Layout, options: Options, rows: Any, slots: Any
) -> Any:
    """Returns the prefix cache (`mem_cache/registry.py`)."""
    types = sglang.ComponentType
    components = {
        types.FULL: layout.full,
        types.SWA: layout.sliding,
        types.MAMBA: layout.state,
    }
    params = sglang.CacheInitParams(
        disable=not config["prefix_cache"],
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=slots,
        page_size=layout.page,
        is_eagle=options.drafts == "EAGLE",
        sliding_window_size=layout.window,
        enable_kv_cache_events=True,
        tree_components=tuple(
            component for component, group in components.items() if group is not None
        ),
        tree_core_backend=options.core,
    )
    if layout.full is None:
        return sglang.PureSWARadixCache(params)
    return sglang.RadixCache(params) if options.core is None else open_unified(params)
