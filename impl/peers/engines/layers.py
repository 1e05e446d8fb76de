"""Imports the layer caches of litgpt 0.5.13, ExecuTorch 1.5.1 and flash-linear-attention
0.6.0, which need torch alone."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import open_engine, take

LITGPT = Engine(
    package="litgpt",
    version="0.5.13",
    pins="ci/engines/litgpt.txt",
    needs=("torch",),
    bare=("litgpt",),
    stand_ins=(StandIn("litgpt.scripts", "converts checkpoints"),),
)
LLAMA = "executorch.examples.models.llama"
EXECUTORCH = Engine(
    package="executorch",
    version="1.5.1",
    pins="ci/engines/executorch.txt",
    needs=("torch",),
    bare=("executorch.examples.models", LLAMA),
    stand_ins=(StandIn("torchao", "quantizes weights"),),
)
FLA = Engine(
    package="fla",
    version="0.6.0",
    pins="ci/engines/fla.txt",
    needs=("torch", "transformers>=5.24,<6"),
    bare=("fla", "fla.models"),
    stand_ins=(),
    distribution="flash-linear-attention",
)


@cache
def load_litgpt() -> SimpleNamespace:
    """Returns the classes and functions of litgpt that the adapter needs.

    Raises:
        Unavailable: litgpt 0.5.13 or torch is not installed.
    """
    names = "KVCache", "batched_index_select", "build_mask_cache"
    return take(open_engine(LITGPT), {"litgpt.model": names})


@cache
def load_executorch() -> SimpleNamespace:
    """Returns the classes of ExecuTorch's Llama that the adapter needs.

    Raises:
        Unavailable: ExecuTorch 1.5.1 or torch is not installed.
    """
    modules = {
        f"{LLAMA}.attention": ("KVCache", "RingKVCache"),
        f"{LLAMA}.source_transformation.attention_sink": ("KVCacheWithAttentionSink",),
        f"{LLAMA}.source_transformation.custom_kv_cache": (
            "QuantizedCacheType",
            "QuantizedKVCache",
        ),
    }
    return take(open_engine(EXECUTORCH), modules)


@cache
def load_fla() -> SimpleNamespace:
    """Returns the cache of flash-linear-attention.

    Raises:
        Unavailable: flash-linear-attention 0.6.0, torch or transformers is not installed.
    """
    return take(open_engine(FLA), {"fla.models.cache_utils": ("FLACache",)})
