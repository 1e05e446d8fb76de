"""Imports the prefix caches and token pools of SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import Importer, open_engine, take

SERVER = "of the server; caches neither listen nor send"
GPU = "kernels and communication of GPUs"
MODEL = "of models, which do not run here"


def _name_algorithm(name: str) -> SimpleNamespace:
    """Returns the flags for the additional caches of an algorithm of speculative
    decoding."""
    return SimpleNamespace(is_uno=lambda: False, has_draft_kv=lambda: name == "EAGLE")


SGLANG = Engine(
    package="sglang",
    version="0.5.23",
    pins="ci/engines/sglang.txt",
    needs=("torch", "triton", "msgspec", "numpy"),
    bare=("sglang", "sglang.srt.configs", "sglang.srt.distributed"),
    stand_ins=(
        StandIn("PIL", "images; requests here are tokens"),
        StandIn("orjson", SERVER),
        StandIn("psutil", "measures the machine; pools here have a size"),
        StandIn("pybase64", SERVER),
        StandIn("pydantic", SERVER),
        StandIn("pydantic_core", SERVER),
        StandIn("requests", SERVER),
        StandIn("starlette", SERVER),
        StandIn("zmq", SERVER),
        StandIn("sglang.kernels", GPU),
        StandIn(
            "sglang.kernels.ops.quantization.fp8_kernel",
            GPU,
            {"is_fp8_fnuz": lambda: False},  # true on GPUs of AMD
        ),
        StandIn("sglang.srt.configs.model_config", MODEL),
        StandIn("sglang.srt.constrained", "grammars; a request here has none"),
        StandIn("sglang.srt.disaggregation.utils", SERVER),
        StandIn("sglang.srt.distributed.parallel_state", GPU),
        StandIn("sglang.srt.layers", MODEL),
        StandIn(
            "sglang.srt.layers.attention.dsv4.unified_kv_gate",
            MODEL,
            {"is_unified_kv_triton": lambda: False},  # of DeepSeek V4 on GPUs of AMD
        ),
        StandIn("sglang.srt.managers.overlap_utils", "overlaps steps of a GPU"),
        StandIn("sglang.srt.mem_cache.allocator.hisparse", GPU),
        StandIn("sglang.srt.mem_cache.index_key_cache", GPU),
        StandIn("sglang.srt.model_executor", MODEL),
        StandIn("sglang.srt.sampling", MODEL),
        StandIn("sglang.srt.server_args", "settings of the server; see `publish`"),
        StandIn("sglang.srt.speculative", MODEL),
        StandIn(
            "sglang.srt.speculative.spec_info",
            MODEL,
            {"SpeculativeAlgorithm": SimpleNamespace(from_string=_name_algorithm)},
        ),
    ),
)

CACHE = "sglang.srt.mem_cache"

NAMES = {
    "sglang.srt.disaggregation.kv_events": (
        "AllBlocksCleared",
        "BlockRemoved",
        "BlockStored",
    ),
    "sglang.srt.environ": ("envs",),
    "sglang.srt.managers.schedule_batch": (
        "Req",
        "ReqKvInfo",
        "ScheduleBatch",
        "release_req",
    ),
    f"{CACHE}.allocation": (
        "alloc_for_decode",
        "alloc_for_extend",
        "alloc_for_spec_decode",
    ),
    f"{CACHE}.allocation_sizing": (
        "get_alloc_reserve_per_decode",
        "page_aligned_decode_alloc_lens",
    ),
    f"{CACHE}.allocator.mamba": ("MambaSlotAllocator",),
    f"{CACHE}.allocator.paged": ("PagedTokenToKVPoolAllocator",),
    f"{CACHE}.allocator.swa": (
        "PureSWATokenToKVPoolAllocator",
        "SWATokenToKVPoolAllocator",
    ),
    f"{CACHE}.allocator.token": ("TokenToKVPoolAllocator",),
    f"{CACHE}.base_prefix_cache": (
        "EvictParams",
        "InsertParams",
        "MatchPrefixParams",
    ),
    f"{CACHE}.base_swa_memory_pool": ("BaseSWAKVPool",),
    f"{CACHE}.cache_init_params": ("CacheInitParams",),
    f"{CACHE}.common": (
        "checkpoint_kv_cache",
        "evict_from_tree_cache",
        "match_kv_cache",
        "release_kv_cache",
    ),
    f"{CACHE}.memory_pool": ("HybridReqToTokenPool", "ReqToTokenPool"),
    f"{CACHE}.pure_swa_radix_cache": ("PureSWARadixCache",),
    f"{CACHE}.radix_cache": ("RadixCache", "RadixKey"),
    f"{CACHE}.unified_cache.component_type": ("ComponentType",),
    f"{CACHE}.unified_radix_cache": ("UnifiedRadixCache",),
}
"""Module → the names that `load_sglang` takes from it."""


def open_sglang() -> Importer:
    """Returns the importer of SGLang, for modules that `load_sglang` does not return.

    Raises:
        Unavailable: SGLang 0.5.23, or a package that it needs, is not installed.
    """
    return open_engine(SGLANG)


@cache
def load_sglang() -> SimpleNamespace:
    """Returns the classes and functions in `NAMES`, and publishes the settings.

    Raises:
        Unavailable: SGLang 0.5.23, or a package that it needs, is not installed.
    """
    publish(open_sglang())
    allocation = open_sglang().load(f"{CACHE}.allocation")
    allocation.assign_req_to_token_pool_func = _write_rows
    return take(open_sglang(), NAMES)


def publish(sglang: Importer) -> None:
    """Publishes the server settings that the caches read, with default values.

    A server publishes hundreds of settings, which come from its arguments and from the
    configuration of a model.
    """
    runtime = sglang.load("sglang.srt.runtime_context")
    runtime.get_parallel().override_permanently(attn_dcp_size=1)
    context = runtime.get_context()
    context._server_args = SimpleNamespace(_mamba_cache_chunk_size=1)
    mamba = SimpleNamespace(
        enable_int8_mamba_checkpoint=False,
        enable_mamba_extra_buffer_lazy=False,
        mamba_max_states_per_path=-1,
    )
    kernel = SimpleNamespace(
        attention_backend="torch_native",  # on CPU, without kernels
        decode_attention_backend=None,
        prefill_attention_backend=None,
    )
    context._config_bags = {
        "disagg": SimpleNamespace(disaggregation_mode="null"),
        "exec": SimpleNamespace(kernel=kernel, mamba=mamba),
        "schedule": SimpleNamespace(page_size=1),  # matters for trees of drafts
        "serving": SimpleNamespace(strip_thinking_cache=False),
        "spec": SimpleNamespace(speculative_algorithm=None),
    }


def _write_rows(
    rows: Any, table: Any, starts: Any, ends: Any, slots: Any, count: int
) -> None:
    """Writes the slots of each request to the request's row; replaces a GPU kernel."""
    first = 0
    for row, start, end in zip(
        rows.tolist(), starts.tolist(), ends.tolist(), strict=True
    ):
        table[row, start:end] = slots[first : first + end - start]
        first += end - start


@contextmanager
def speculate(algorithm: str, drafts: int) -> Iterator[None]:
    """Publishes the settings of a server with speculative decoding, for calls in this
    context.

    Args:
        algorithm: the server's `speculative_algorithm`.
        drafts: the largest number of drafts that the server verifies in a step.
    """
    bags = open_sglang().load("sglang.srt.runtime_context").get_context()._config_bags
    spec = bags["spec"]
    bags["spec"] = SimpleNamespace(
        speculative_algorithm=algorithm,
        speculative_num_steps=drafts,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=drafts + 1,
        max_speculative_num_draft_tokens=None,
    )
    try:
        yield
    finally:
        bags["spec"] = spec


def open_unified(params: Any) -> Any:
    """Returns a `UnifiedRadixCache`. Its constructor imports the Rust core.

    Args:
        params: a `CacheInitParams`; its `tree_core_backend` is "python" or "rust".
    """
    with open_sglang().visible():
        return load_sglang().UnifiedRadixCache(params)
