"""The caches of transformers (`transformers.cache_utils`), driven as its models do.

A model builds the mask with one of the builders of `transformers.masking_utils`, which
call `get_query_offset` and `get_mask_sizes` of the cache, then calls `update`. Masks are
[1, 1, rows, columns]: additive for the "eager" attention, boolean for "sdpa", or None if
`sdpa_attention_forward` (`transformers.integrations.sdpa_attention`) relies on
`is_causal`, which torch aligns with the upper left and which a single row does not use.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, QuantizedLayer, StaticCache
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

from lockstep.harness.backends import Backend, Inputs, Kind, Lifetime
from lockstep.harness.backends.backend import Code
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.transformers_code import get_attention, write_with
from lockstep.impl.torch.arrays import TorchArrays

Config = Mapping[str, Any]
LEDGER = Path(__file__).parent / "ledger"

REFUSAL = "`crop` was called, but the current layer does not track past states"
"""The beginning of the message of a sliding layer that cannot go back."""

STATIC_LENGTH = 1024
"""Capacity of a static cache, in tokens; programs keep one cache below that."""

MASKS: Mapping[str, Callable[..., Any]] = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
    "chunked_attention": create_chunked_causal_mask,
}
COMMON = {"mask_padding": (1,), "mask_form": ("any", "additive"), "keep": (0,)}
PLAIN = {**COMMON, "chunk": (None,)}
CHUNKED = {**COMMON, "chunk": (1, 2, 3, 4, 5, 8)}


class Layer:
    """A cache of transformers with one layer, as a layer of the contract.

    Args:
        cache: the cache of transformers.
        config: the configuration of its model.
    """

    def __init__(self, cache: Any, config: Any) -> None:
        self.cache = cache
        self.config = config

    @property
    def offset(self) -> int:
        return int(self.cache.get_seq_length())  # a static layer counts in a tensor

    def make_mask(self, length: int, rows: int) -> Mask:
        """Builds the mask as a model does.

        Of the embeddings the builder reads only length and dtype.
        """
        build = MASKS[self.config.layer_types[0]]
        embeddings = torch.empty(1, length, 1, dtype=self.config.dtype)
        mask = build(self.config, embeddings, None, self.cache)
        return "causal" if mask is None and length > 1 else mask

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        keys, values = self.cache.update(keys, values, 0)
        return keys, values

    def state(self) -> tuple[Array, Array] | None:
        """Returns the tensors of a dynamic layer; a full layer holds all its tokens."""
        layer = self.cache.layers[0]
        return (layer.keys, layer.values) if layer.is_initialized else None

    def size(self) -> int:
        return int(self.cache.get_seq_length())

    def trim(self, count: int) -> int:
        """Calls `crop`, which takes the number of tokens to remove as a negative number.

        Returns 0 for the refusal that it documents, and no other exception: a sliding
        layer that has reached its window changes nothing.
        """
        before = self.offset
        try:
            self.cache.crop(-count)
        except RuntimeError as error:
            if not str(error).startswith(REFUSAL):
                raise
            return 0
        return before - self.offset

    def clone(self) -> Layer:
        """Copies with `copy.deepcopy`, as the documentation does to reuse a prompt."""
        return Layer(copy.deepcopy(self.cache), self.config)

    def free(self) -> None:
        self.cache.reset()


class IdentityLayer(QuantizedLayer):
    """The quantized layer with a quantizer that rounds nothing.

    It tests the bookkeeping of the base class: the packed tokens and the residual.
    """

    def _quantize(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.clone()

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor.clone()


def transformers() -> Backend:
    """`DynamicCache`: a full layer for kv, a sliding one for rotating.

    A sliding layer holds W - 1 tokens between updates and counts all it has seen, so it
    has neither the state nor the size of the contract.
    """
    kinds = {
        "kv": _kind({"update", "state", "size", "trim", "clone", "free"}, PLAIN),
        "rotating": _kind({"update", "trim", "clone", "free"}, PLAIN),
    }
    return _backend("transformers", kinds, DYNAMIC, "forever")


def transformers_chunked() -> Backend:
    """`DynamicCache` with a chunked layer, the sliding one under another mask.

    It cannot be cropped once it holds a chunk, so trim is not declared.
    """
    kinds = {"kv": _kind({"update", "size", "clone", "free"}, CHUNKED)}
    return _backend("transformers-chunked", kinds, DYNAMIC, "forever")


def transformers_static() -> Backend:
    """`StaticCache`: full and sliding layers in tensors of fixed size."""
    kinds = {
        "kv": _kind({"update", "size", "clone", "free"}, PLAIN),
        "rotating": _kind({"update", "clone", "free"}, PLAIN, "kept"),
    }
    return _backend("transformers-static", kinds, STATIC, "until-write")


def transformers_static_chunked() -> Backend:
    """`StaticCache` with a chunked layer."""
    kinds = {"kv": _kind({"update", "size", "clone", "free"}, CHUNKED, "kept")}
    return _backend("transformers-static-chunked", kinds, STATIC, "until-write")


def transformers_quantized() -> Backend:
    """The base class of the quantized layers; "step" is its residual length."""
    kinds = {"kv": _kind({"update", "size", "trim", "clone", "free"}, PLAIN, "kept")}
    return _backend("transformers-quantized", kinds, QUANTIZED, "forever")


def _open_dynamic(config: Config) -> Layer:
    model = _model(config)
    return Layer(DynamicCache(config=model), model)


def _open_static(config: Config) -> Layer:
    model = _model(config)
    return Layer(StaticCache(config=model, max_cache_len=STATIC_LENGTH), model)


def _open_quantized(config: Config) -> Layer:
    layer = IdentityLayer(residual_length=config["step"])
    return Layer(Cache(layers=[layer]), _model(config))


DYNAMIC = _open_dynamic, write_with("DynamicCache(config=CONFIG)")
STATIC = (
    _open_static,
    write_with(f"StaticCache(config=CONFIG, max_cache_len={STATIC_LENGTH})"),
)
QUANTIZED = (
    _open_quantized,
    write_with("Cache(layers=[IdentityLayer(residual_length={step})])"),
)
"""Each of the three: (function that opens the cache, function that writes it as code)."""


def _model(config: Config) -> Any:
    """Returns the configuration of a model with one layer of the kind's attention."""
    make: Callable[..., Any] = PreTrainedConfig  # model fields are not annotated
    return make(
        num_hidden_layers=1,
        layer_types=[get_attention(config)],
        sliding_window=config["window"],
        attention_chunk_size=config["chunk"],
        attn_implementation="eager" if config["mask_form"] == "additive" else "sdpa",
        dtype=config["dtype"],
    )


def _kind(
    operations: set[str],
    config: Mapping[str, tuple[Any, ...]],
    inputs: Inputs = "copied",
) -> Kind:
    """Declares a kind.

    `inputs` is "kept" where `update` returns the tensors that it was given: a prompt as
    long as the window (static), or the first one (quantized). A model makes K and V anew
    in each pass and never writes to them afterwards.
    """
    return Kind(frozenset(operations), config, inputs=inputs)


def _backend(
    name: str,
    kinds: Mapping[str, Kind],
    opening: tuple[Callable[[Config], Layer], Callable[[Config], Code]],
    lifetime: Lifetime,
) -> Backend:
    return Backend(
        name=name,
        device="cpu",
        contracts={"layer": kinds},
        arrays=TorchArrays("cpu"),
        open=opening[0],
        dtypes=("float32", "float16", "bfloat16"),
        lifetime=lifetime,
        causal="upper-left",
        overwrite=lambda array: array.fill_(math.nan),
        ledger=LEDGER,
        code=opening[1],
        versions={package: version(package) for package in ("transformers", "torch")},
    )
