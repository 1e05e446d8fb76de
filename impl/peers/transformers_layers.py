"""Adapters to transformers' caches of one sequence (`transformers.cache_utils`).

They make the same calls as models. A model builds the mask by a function of
`transformers.masking_utils`, which calls `get_query_offset` and `get_mask_sizes` of the
cache; then the model calls `update`. A mask has the shape [1, 1, rows, columns]. It is
additive for "eager" attention and boolean for "sdpa". It is None if
`sdpa_attention_forward` (`transformers.integrations.sdpa_attention`) uses `is_causal`
instead; torch aligns this mask with the upper left corner, and does not apply it to a
single row. The adapters check no call; the backends declare which calls are not allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import QuantizedLayer
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_recurrent_attention_mask,
    create_sliding_window_causal_mask,
)

from lockstep.harness.backends.interface import Array, Mask

Config = Mapping[str, Any]

Attention = tuple[str, int | None]
"""The type of a layer, and its window."""

ROOM_BESIDE = 1024
"""`max_cache_len` of attention beside a state; as a window, it stands for no window."""

MASKS: Mapping[str, Callable[..., Any]] = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
    "chunked_attention": create_chunked_causal_mask,
    "indexed_attention": partial(create_causal_mask, allow_is_causal_skip=False),
    "hybrid": create_causal_mask,
    "hybrid_sliding": create_sliding_window_causal_mask,
    "linear_attention": create_recurrent_attention_mask,
}
"""The mask function that models call for a type of layers; for hybrid layers, the mask
of their attention."""


def build_mask(
    config: Any,
    cache: Any,
    length: int,
    attention_mask: torch.Tensor | None = None,
    layer_type: str | None = None,
) -> torch.Tensor | None:
    """Builds a mask, like a model.

    Args:
        config: the configuration of the model.
        cache: the model's cache, before the update.
        length: the number of new columns.
        attention_mask: the 2-D mask of a batch, [rows, old and new columns]; 0 is
            padding. None for one sequence.
        layer_type: selects a mask of a hybrid layer; by default, the mask of its
            attention.
    """
    build = MASKS[layer_type or config.layer_types[0]]
    rows = 1 if attention_mask is None else len(attention_mask)
    # The mask functions read only shape and dtype of the embeddings.
    embeddings = torch.empty(rows, length, 1, dtype=config.dtype)
    mask: torch.Tensor | None = build(config, embeddings, attention_mask, cache)
    return mask


class Layer:
    """Adapts a cache of transformers with one layer to the interface of a layer cache.

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
        mask = build_mask(self.config, self.cache, length)
        return "causal" if mask is None and length > 1 else mask

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        keys, values = self.cache.update(keys, values, 0)
        return keys, values

    def state(self) -> tuple[Array, Array] | None:
        """Returns the tensors of a dynamic layer; in a full layer, they contain all
        tokens."""
        layer = self.cache.layers[0]
        return (layer.keys, layer.values) if layer.is_initialized else None

    def size(self) -> int:
        return int(self.cache.get_seq_length())

    def trim(self, count: int) -> int:
        """Calls `crop` with the negative number of tokens to remove."""
        offset = self.offset
        self.cache.crop(-count)
        return offset - self.offset

    def clone(self) -> Layer:
        """Copies the cache by `copy.deepcopy`, which the documentation recommends to
        reuse a prompt."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied

    def free(self) -> None:
        self.cache.reset()


class IdentityLayer(QuantizedLayer):
    """A quantized layer whose quantizer does not round.

    With this layer, a check compares the bookkeeping of the base class without rounding:
    the packed tokens and the residual.
    """

    def _quantize(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.clone()

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor.clone()


class States:
    """The states of a `LinearAttentionLayer`, which transformers uses for gated delta
    layers (`models.qwen3_next`).

    The layer keeps one convolution input more than the next token needs. This adapter
    does not return that input.
    """

    cache: Any

    def set_shapes(self, model: Any, config: Config) -> None:
        """Makes the states that stand for missing ones, from a complete config."""
        self.kernel = config["conv_width"]
        heads, key_dim = config["heads"], config["key_dim"]
        conv = torch.zeros(1, heads * key_dim, self.kernel, dtype=model.dtype)
        self.missing = conv, torch.zeros(1, heads, key_dim, config["value_dim"])

    def count_rows(self) -> int:
        return 1

    def read(self) -> tuple[Array, Array]:
        """Returns the two tensors; a missing tensor is replaced by zeros, like in the
        model."""
        states = self.cache.get_conv_state(0), self.cache.get_recurrent_state(0)
        conv, delta = (
            missing.repeat_interleave(self.count_rows(), 0) if tensor is None else tensor
            for tensor, missing in zip(states, self.missing, strict=True)
        )
        return conv[..., 1:].transpose(1, 2), delta

    def write_states(self, conv: Array, delta: Array, length: int) -> None:
        """Passes the new convolution inputs to the layer; the inputs of padding are
        zeros."""
        inputs = conv[:, -length:].transpose(1, 2)  # [rows, channels, length]
        self.cache.update_conv_state(inputs, 0, conv_kernel_size=self.kernel)
        self.cache.update_recurrent_state(delta, 0)


class RecurrentLayer(States, Layer):
    """Adapts a `LinearAttentionLayer` to the interface of a state cache. The layer does
    not count tokens, so this adapter counts them.

    Args:
        cache: the cache of transformers.
        model: the configuration of its model.
        config: a complete config, which gives the shapes of a missing state.
    """

    def __init__(self, cache: Any, model: Any, config: Config) -> None:
        super().__init__(cache, model)
        self.read_tokens = 0
        self.set_shapes(model, config)

    @property
    def offset(self) -> int:
        return self.read_tokens

    def boundaries(self, length: int) -> Sequence[int]:
        return [length]

    def state(self) -> tuple[Array, Array]:
        return self.read()

    def view(self) -> tuple[Array, Array]:
        return self.read()

    def write(self, conv: Array, delta: Array, length: int) -> None:
        self.write_states(conv, delta, length)
        self.read_tokens += length

    def free(self) -> None:
        self.cache.reset()
        self.read_tokens = 0


# --- the layer of a config --------------------------------------------------------------


def get_attention(config: Config) -> Attention:
    """Returns the type and window of a layer that has either attention or a state."""
    kind, window = config["kind"].removeprefix("batch-"), config["window"]
    if kind == "state":
        return "linear_attention", None
    if kind == "rotating":
        return "sliding_attention", window
    return "full_attention" if config["chunk"] is None else "chunked_attention", None


def get_indexed(config: Config) -> Attention:
    """Returns the type and window of a layer with an indexer."""
    return "indexed_attention", None


def get_hybrid(config: Config) -> Attention:
    """Returns the type and window of a layer with attention and a state.

    If the state is compared, the config field "step" is the window, because the config of
    a state does not use this field otherwise.
    """
    window = config["window"]
    if config["kind"] == "batch-state" and config["step"] < ROOM_BESIDE:
        window = config["step"]
    return "hybrid" if window is None else "hybrid_sliding", window


def get_room(config: Config) -> int:
    """Returns the `max_cache_len` of a static cache: the config field "step", which a
    static cache does not use otherwise."""
    return ROOM_BESIDE if config["kind"] == "batch-state" else int(config["step"])
