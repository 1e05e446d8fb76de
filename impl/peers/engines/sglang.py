"""The prefix caches and token pools of SGLang 0.5.23."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import Importer, open_engine, take

SERVER = "of the server; caches neither listen nor send"
GPU = "kernels and communication of GPUs"
MODEL = "of models, which do not run here"

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
    f"{CACHE}.allocation": ("alloc_for_decode", "alloc_for_extend"),
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
"""Module → what `load_sglang` takes of it."""


def open_sglang() -> Importer:
    """Returns the importer of SGLang, for modules that `load_sglang` does not name.

    Raises:
        Unavailable: SGLang 0.5.23, or a package that it needs, is not installed.
    """
    return open_engine(SGLANG)


@cache
def load_sglang() -> SimpleNamespace:
    """Returns the classes and functions of `NAMES`, with the settings published.

    Raises:
        Unavailable: as `open_sglang`.
    """
    publish(open_sglang())
    return take(open_sglang(), NAMES)


def publish(sglang: Importer) -> None:
    """Publishes those settings of a server that the caches read, at their defaults.

    A server publishes hundreds, out of its arguments and the configuration of a model.
    """
    context = sglang.load("sglang.srt.runtime_context").get_context()
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
        "serving": SimpleNamespace(strip_thinking_cache=False),
        "spec": SimpleNamespace(speculative_algorithm=None),
    }


def open_unified(params: Any) -> Any:
    """Returns a `UnifiedRadixCache`, which looks for its Rust core when it is made.

    Args:
        params: a `CacheInitParams`, whose `tree_core_backend` is "python" or "rust".
    """
    with open_sglang().visible():
        return load_sglang().UnifiedRadixCache(params)
