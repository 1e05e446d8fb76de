"""The compressed entries of DeepSeek V4 in transformers: declarations and adapter.

The cache layers keep the entries and the open tokens; the compressor, a module of the
model, makes the entries and the mask. The adapter runs this module with weights that
leave tokens as they are, so that each entry is a mean.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import DeepseekV4Config, DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import COMPRESSOR_CLASSES

from lockstep.harness.backends import Backend
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.transformers import Fields, declare_backend, declare_kind
from lockstep.impl.peers.transformers_layers import Config, Layer

HEAVY, SPARSE = "heavily_compressed_attention", "compressed_sparse_attention"

MANY = 1 << 20
"""More tokens than a program has: the window of the attention beside the entries, and the
number of entries that an indexer selects."""


def heavy() -> Backend:
    """Declares the layer of heavily compressed attention, whose windows do not overlap.

    `trim` is not declared for the layers of DeepSeek V4: the model is `_is_stateful`,
    since "the compressor's running-window state isn't rewindable". (The `is_croppable` of
    the layers is True nevertheless, and `crop` keeps the entries and the open tokens.)
    """
    return _declare("transformers-compressed", HEAVY, {"overlap": (0,)})


def sparse() -> Backend:
    """Declares the layer of compressed sparse attention with windows of 4 tokens, as in
    the released models. An entry is made of the tokens of two windows. The indexer
    selects all entries."""
    sizes = {"pool": (4,), "overlap": (4,)}
    return _declare("transformers-compressed-sparse", SPARSE, sizes)


def _declare(name: str, layer_type: str, sizes: Fields) -> Backend:
    operations = {"update", "state", "size", "clone", "free"}
    masks: Fields = {"mask_padding": (1,), "dtype": ("float32",), "lookahead": (0,)}
    kind = declare_kind(operations, {**masks, **sizes})
    opener = partial(CompressedLayer, layer_type)
    return declare_backend(name, {"pooled": kind}, opener, "forever")


class Unrotated(torch.nn.Module):
    """Stands for the rotary embedding: leaves entries as they are."""

    def forward(
        self, x: Array, position_ids: Array, layer_type: str
    ) -> tuple[Array, Array]:
        shape = (*position_ids.shape, 1)
        return x.new_ones(shape), x.new_zeros(shape)


def make_compressor(model: Any) -> Any:
    """Returns the compressor of a layer, which makes the mean of the hidden states."""
    compressor = COMPRESSOR_CLASSES[model.layer_types[0]](model)
    compressor.kv_norm, compressor.rotary_emb = torch.nn.Identity(), Unrotated()
    width = model.hidden_size
    series = compressor.kv_proj.out_features // width  # two if windows overlap
    compressor.requires_grad_(False)
    for parameter in compressor.parameters():
        parameter.zero_()
    compressor.kv_proj.weight += torch.eye(width).repeat(series, 1)
    return compressor


class CompressedLayer(Layer):
    """Adapts a cache layer of DeepSeek V4, with its compressor. The hidden state of a
    token is its K and V in all heads."""

    def __init__(self, layer_type: str, config: Config) -> None:
        self.sizes = config["heads"], config["key_dim"], config["value_dim"]
        width = config["heads"] * (config["key_dim"] + config["value_dim"])
        model = DeepseekV4Config(
            num_hidden_layers=1,
            layer_types=[layer_type],
            compress_rates={HEAVY: config["pool"], SPARSE: config["pool"]},
            hidden_size=width,
            head_dim=width,
            q_lora_rank=width,
            partial_rotary_factor=0.5,
            index_n_heads=1,
            index_head_dim=width,
            index_topk=MANY,
            sliding_window=MANY,
            dtype=config["dtype"],
        )
        super().__init__(DynamicCache(config=model), model)
        self.compressor = make_compressor(model)

    def run(self, keys: Array, values: Array) -> tuple[Array, Mask]:
        """Makes the calls of `DeepseekV4Attention.forward`; returns the entries and their
        mask."""
        length = keys.shape[2]
        hidden = torch.cat([keys, values], -1).transpose(1, 2).reshape(1, length, -1)
        positions = torch.arange(self.offset, self.offset + length)[None]
        self.cache.update(hidden[:, None], hidden[:, None], 0)
        entries, mask = self.compressor(hidden, hidden, positions, self.cache, 0)
        return entries, mask

    def make_mask(self, length: int, rows: int) -> Mask:
        """Returns the mask that the compressor makes in an update of a copy."""
        heads, *dims = self.sizes
        _, mask = self.clone().run(*(torch.zeros(1, heads, length, dim) for dim in dims))
        return mask

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        return self.split(self.run(keys, values)[0][:, 0])

    def split(self, entries: Array) -> tuple[Array, Array]:
        """Returns K and V of entries [1, entries, heads * (key_dim + value_dim)]."""
        heads, *dims = self.sizes
        shape = (1, entries.shape[1], heads, sum(dims))
        keys, values = entries.view(shape).transpose(1, 2).split(dims, -1)
        return keys, values

    def state(self) -> tuple[Array, Array] | None:
        entries = self.cache.layers[0].compressed_kv["compressor"]
        return None if entries is None else self.split(entries)

    def size(self) -> int:
        return int(self.cache.layers[0].entry_count["compressor"])
