"""Imports the block manager of vLLM 0.33.0."""

from __future__ import annotations

import logging
from functools import cache
from types import SimpleNamespace
from typing import Any

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import Importer, open_engine, take


def _get_dtype_size(dtype: Any) -> int:
    return int(dtype.itemsize)  # the original reads it from an empty tensor


def _find_features(features: Any, start: int, end: int) -> tuple[int, int]:
    """Returns the range of the images that cover positions of [start, end)."""
    spans = [(item.mm_position.offset, item.mm_position.length) for item in features]
    previous = sum(offset + length <= start for offset, length in spans)
    return previous, sum(offset < end for offset, _ in spans)


class _Logger(logging.Logger):
    """A logger that logs only errors, and does not change the handlers of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.ERROR)
        for level in ("debug", "info", "warning"):
            setattr(self, f"{level}_once", getattr(self, level))


VLLM = Engine(
    package="vllm",
    version="0.33.0",
    pins="ci/engines/vllm.txt",
    needs=("torch", "msgspec", "cbor2"),
    bare=(
        "vllm",
        "vllm.distributed",
        "vllm.v1.attention",
        "vllm.v1.attention.backends",
        "vllm.v1.core.sched",
        "vllm.v1.spec_decode",
    ),
    stand_ins=(
        StandIn("uvloop", "the event loop of the server"),
        StandIn("regex", "parses what servers are asked"),
        StandIn("zmq", "sends events to other processes; here they are taken"),
        StandIn("vllm.compilation", "measures CUDA graphs"),
        StandIn(
            "vllm.config",
            "the settings of a server; the manager takes numbers",
            {"get_current_vllm_config_or_none": lambda: None},
        ),
        StandIn(
            "vllm.logger",
            "sets up logging of the whole process",
            {"init_logger": _Logger},
        ),
        StandIn("vllm.distributed.aux_output_connector", "outputs beside tokens"),
        StandIn("vllm.distributed.ec_transfer", "sends what encoders compute"),
        StandIn("vllm.distributed.kv_transfer", "connectors; the adapter has its own"),
        StandIn("vllm.lora", "adapters' weights; the manager reads a name off a request"),
        StandIn("vllm.multimodal", "images; requests here are tokens"),
        StandIn(
            "vllm.multimodal.utils",
            "images; the manager reads their hashes and positions",
            {"get_mm_features_in_window": _find_features},
        ),
        StandIn("vllm.outputs", "what a server answers"),
        StandIn(
            "vllm.platforms",
            "detects GPUs; no platform adds kinds of caches here",
            {
                "current_platform": SimpleNamespace(
                    register_custom_kv_cache_specs=lambda config: None
                )
            },
        ),
        StandIn("vllm.pooling_params", "annotations only"),
        StandIn(
            "vllm.sampling_params", "annotations only; any object with the fields does"
        ),
        StandIn("vllm.usage", "reports statistics to vLLM's server"),
        StandIn("vllm.utils.network_utils", "sockets of the event publisher"),
        StandIn("vllm.utils.system_utils", "processes of the server"),
        StandIn(
            "vllm.utils.torch_utils",
            "registers operators with torch, for good",
            {"get_dtype_size": _get_dtype_size, "PIN_MEMORY": False},
        ),
        StandIn("vllm.v1.metrics.perf", "exports to Prometheus"),
        StandIn("vllm.v1.outputs", "annotations only"),
        StandIn("vllm.v1.serial_utils", "messages between processes"),
        StandIn("vllm.v1.spec_decode.metrics", "exports to Prometheus"),
        StandIn("vllm.v1.structured_output", "annotations only"),
        StandIn(
            "vllm.v1.structured_output.request",
            "grammars; a request here has none",
            {
                "StructuredOutputRequest": SimpleNamespace(
                    from_sampling_params=lambda params: None
                )
            },
        ),
    ),
)


NAMES = {
    "vllm.distributed.kv_transfer.kv_connector.v1": ("SupportsHMA",),
    "vllm.distributed.kv_events": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
    "vllm.v1.core.block_pool": ("BlockPool",),
    "vllm.v1.core.kv_cache_manager": ("KVCacheBlocks", "KVCacheManager"),
    "vllm.v1.core.kv_cache_utils": (
        "BlockHashListWithBlockSize",
        "FreeKVCacheBlockQueue",
        "KVCacheBlock",
        "KVCacheBlockCopy",
        "get_block_hash",
        "get_group_id",
        "get_request_block_hasher",
        "init_none_hash",
        "maybe_convert_block_hash",
    ),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.core.sched.request_queue": ("FCFSRequestQueue",),
    "vllm.v1.core.single_type_kv_cache_manager": (
        "ChunkedLocalAttentionManager",
        "FullAttentionManager",
        "MambaManager",
        "SlidingWindowManager",
    ),
    "vllm.v1.kv_cache_interface": (
        "ChunkedLocalAttentionSpec",
        "FullAttentionSpec",
        "KVCacheConfig",
        "KVCacheGroupSpec",
        "MambaSpec",
        "SlidingWindowSpec",
    ),
    "vllm.v1.request": ("Request", "RequestStatus"),
}
"""Module → the names that `load_vllm` takes from it."""


def open_vllm() -> Importer:
    """Returns the importer of vLLM, for modules that `load_vllm` does not return.

    Raises:
        Unavailable: vLLM 0.33.0, or a package that it needs, is not installed.
    """
    return open_engine(VLLM)


@cache
def load_vllm() -> SimpleNamespace:
    """Returns the classes and functions in `NAMES`.

    Raises:
        Unavailable: vLLM 0.33.0, or a package that it needs, is not installed.
    """
    return take(open_vllm(), NAMES)
