"""The building blocks of snippets for transformers: parts of this file are copied.

It imports transformers and nothing of ours. What is in capitals, a snippet sets itself.
"""

import copy

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    QuantizedCache,
    QuantizedLayer,
    StaticCache,
)
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

HEADS, KEY_DIM, VALUE_DIM, DTYPE = 1, 4, 4, torch.float32
CONFIG = PreTrainedConfig()
make_mask = create_causal_mask


class IdentityLayer(QuantizedLayer):
    """The quantized layer with a quantizer that rounds nothing."""

    def _quantize(self, tensor, axis=0):
        return tensor.clone()

    def _dequantize(self, q_tensor):
        return q_tensor.clone()


def make(tokens, dim):
    """K or V of new tokens: token n is n + 1 in every number, so that it can be told."""
    numbers = torch.tensor([token + 1 for token in tokens], dtype=DTYPE)
    return numbers[None, None, :, None].repeat(1, HEADS, 1, dim)


def name_tokens(keys, values):
    """The token in each column; -1 is memory without one, -2 a mix of several."""
    if keys.shape[2] != values.shape[2]:
        return [-2] * keys.shape[2]
    columns = torch.cat([keys, values], dim=-1)[0].transpose(0, 1).flatten(1)
    told = [{round(number) for number in column} for column in columns.tolist()]
    return [column.pop() - 1 if len(column) == 1 else -2 for column in told]


def see(mask, tokens, rows):
    """The tokens that each of the new rows may attend to."""
    if mask is None:  # a single row sees all; several are causal, from the upper left
        return [sorted(tokens[: row + 1] if rows > 1 else tokens) for row in range(rows)]
    if mask.shape[-1] != len(tokens):
        return [f"a mask of {mask.shape[-1]} for {len(tokens)} columns"] * rows
    seen = mask if mask.dtype == torch.bool else mask == 0
    return [
        sorted(token for token, is_seen in zip(tokens, row) if is_seen)
        for row in seen.reshape(rows, len(tokens)).tolist()
    ]


def update(cache, tokens):
    """As a model does: it makes the mask, then gives new K and V."""
    embeddings = torch.empty(1, len(tokens), 1, dtype=DTYPE)
    mask = make_mask(CONFIG, embeddings, None, cache)
    pair = cache.update(make(tokens, KEY_DIM), make(tokens, VALUE_DIM), 0)
    return see(mask, name_tokens(*pair), len(tokens))


def trim(cache, count):
    """Returns the number of tokens that `crop` removes."""
    before = int(cache.get_seq_length())
    cache.crop(-count)
    return before - int(cache.get_seq_length())


def record(cache):
    """The cache, which keeps what slides out of a window until the next crop."""
    cache.activate_past_recording()
    return cache


def read_state(cache):
    """The tokens in the first layer."""
    layer = cache.layers[0]
    return sorted(name_tokens(layer.keys, layer.values)) if layer.is_initialized else []
