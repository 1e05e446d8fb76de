"""The building blocks of snippets for batches in transformers: parts of this file are
copied.

It imports transformers and nothing of ours. What is in capitals, a snippet sets itself.
"""

import copy
from functools import partial

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, QuantizedLayer, StaticCache
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_recurrent_attention_mask,
    create_sliding_window_causal_mask,
)

HEADS, KEY_DIM, VALUE_DIM, KERNEL, DTYPE = 1, 4, 4, 4, torch.float32
CONFIG = PreTrainedConfig()
make_mask = create_causal_mask


class IdentityLayer(QuantizedLayer):
    """The quantized layer with a quantizer that rounds nothing."""

    def _quantize(self, tensor, axis=0):
        return tensor.clone()

    def _dequantize(self, q_tensor):
        return q_tensor.clone()


class Batch:
    """A cache, and the 2-D attention mask of its rows, as `generate` keeps it."""

    def __init__(self, cache, rows):
        self.cache = cache
        self.attention_mask = torch.ones(rows, 0, dtype=torch.long)

    def offsets(self):
        return self.attention_mask.sum(dim=-1).tolist()


def append(batch, tokens):
    """Adds columns to the mask. Returns token n as n + 1, behind 0 for padding."""
    length = max(map(len, tokens))
    rows = [[0] * (length - len(row)) + [n + 1 for n in row] for row in tokens]
    numbers = torch.tensor(rows, dtype=DTYPE)
    batch.attention_mask = torch.cat([batch.attention_mask, (numbers > 0).long()], -1)
    return numbers


def name_tokens(keys, values):
    """The token in each column of each row; -1 is none, -2 a mix of several."""
    columns = torch.cat([keys, values], dim=-1).transpose(1, 2).flatten(2)
    told = [[set(map(round, each)) for each in row] for row in columns.tolist()]
    return [[each.pop() - 1 if len(each) == 1 else -2 for each in row] for row in told]


def see(mask, names, tokens):
    """The tokens that each new token of each row may attend to."""
    width, rows, length = len(names[0]), len(tokens), max(map(len, tokens))
    assert len(names) == rows
    if mask is None:  # a single query sees all; several are causal, from the upper left
        mask = torch.ones(1, 1, length, width).tril(0 if length > 1 else width) > 0
    seen = mask if mask.dtype == torch.bool else mask == 0
    seen = seen.expand(rows, 1, length, width)[:, 0].tolist()
    return [
        [sorted(name for name, is_seen in zip(own, query) if is_seen) for query in row]
        for own, row in zip(names, [row[-len(new) :] for row, new in zip(seen, tokens)])
    ]


def update(batch, tokens, store=None):
    """As a model does. Returns where the rows begin, and what each new token sees."""
    positions, numbers = batch.offsets(), append(batch, tokens)
    embeddings = torch.empty(*numbers.shape, 1, dtype=DTYPE)
    mask = make_mask(CONFIG, embeddings, batch.attention_mask, batch.cache)
    numbers = numbers[:, None, :, None]
    pair = [numbers.repeat(1, HEADS, 1, dim) for dim in (KEY_DIM, VALUE_DIM)]
    pair = store(batch.cache, *pair) if store else batch.cache.update(*pair, 0)
    return positions, see(mask, name_tokens(*pair), tokens)


def store_indexed(cache, keys, values):
    indexer_keys = cache.update_indexer(keys[:, 0], 0)
    keys, values = cache.update(keys, values, 0)
    return torch.cat([keys, indexer_keys[:, None]], dim=-1), values


def store_hybrid(cache, keys, values):
    """The recurrent state of the layer is written too."""
    inputs = keys.transpose(2, 3).flatten(1, 2)
    cache.update_conv_state(inputs, 0, conv_kernel_size=KERNEL)
    cache.update_recurrent_state(keys[:, :, -1:].mT, 0)
    return cache.update(keys, values, 0)


def read_states(batch):
    """The tokens that each row's state has read, which stand in it one by one."""
    state = batch.cache.get_recurrent_state(0)
    if state is None:
        return [[] for _ in batch.attention_mask]
    return [[round(number) - 1 for number in row if number] for row in state.tolist()]


def advance(batch, tokens, store=None):
    """As a model does. Returns where the rows begin, and what each new token has read."""
    positions, before = batch.offsets(), read_states(batch)
    numbers = append(batch, tokens)
    embeddings = torch.empty(*numbers.shape, 1, dtype=DTYPE)
    mask = create_recurrent_attention_mask(
        CONFIG, embeddings, batch.attention_mask, batch.cache
    )
    batch.cache.update_conv_state(numbers[:, None], 0, conv_kernel_size=KERNEL)
    taken = torch.ones_like(numbers) if mask is None else mask
    read = [
        [round(number) - 1 for number, is_taken in zip(row, own) if is_taken]
        for row, own in zip(numbers.tolist(), taken.tolist())
    ]
    state = torch.zeros(len(tokens), 4096)
    for row, tags in enumerate(map(list.__add__, before, read)):
        state[row, : len(tags)] = torch.tensor(tags) + 1
    batch.cache.update_recurrent_state(state, 0)
    if store:
        store(batch.cache, numbers[:, None, :, None])
    after = read_states(batch)
    told = [
        [old + new[: query + 1] for query in range(len(new) - 1)] + [last]
        for old, new, last in zip(before, read, after)
    ]
    assert len(after) == len(tokens)
    return positions, told


def store_attention(cache, keys):
    """The K and V of the layer are written too."""
    cache.update(keys, keys, 0)


def trim(batch, count):
    before = batch.cache.get_seq_length()
    batch.cache.crop(-count)
    batch.attention_mask = batch.attention_mask[:, : batch.cache.get_seq_length()]
    return before - batch.cache.get_seq_length()


def free(batch):
    batch.cache.reset()
    batch.attention_mask = batch.attention_mask[:, :0]


def read_rows(batch):
    """The tokens that the first layer holds of each row."""
    layer = batch.cache.layers[0]
    if not layer.is_initialized:
        return [[] for _ in batch.attention_mask]
    keys, values = layer.keys, layer.values
    rows = zip(name_tokens(keys, values), batch.attention_mask.tolist())
    return [sorted(n for n, real in zip(own, mask) if real) for own, mask in rows]
