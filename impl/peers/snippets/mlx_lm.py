"""The building blocks of snippets for mlx-lm: parts of this file are copied.

It imports mlx-lm and nothing of ours. What is in capitals, a snippet sets itself.
"""

import copy
import os
import tempfile

import mlx.core as mx
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    LRUPromptCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)

HEADS, KEY_DIM, VALUE_DIM, DTYPE = 1, 4, 4, mx.float32
WINDOW, RETURN_ARRAY = None, False
START, GROUP_SIZE, BITS = 0, 64, 8
LAYERS = 1
STEP = 256


def stepping(cache, step):
    """The same cache, growing by other steps than 256."""
    cache.step = step
    return cache


def make(tokens, dim):
    """K or V of new tokens: token n is n + 1 in every number, so that it can be told."""
    numbers = mx.array([token + 1 for token in tokens], DTYPE)
    return mx.zeros((1, HEADS, len(tokens), dim), DTYPE) + numbers[None, None, :, None]


def name_tokens(keys, values):
    """The token in each column; -1 is memory without one, -2 a mix of several."""
    columns = mx.concatenate([keys, values], axis=-1)[0].swapaxes(0, 1)
    numbers = columns.flatten(1).astype(mx.float32).tolist()
    told = [{round(number) for number in column} for column in numbers]
    return [column.pop() - 1 if len(column) == 1 else -2 for column in told]


def see(mask, tokens, rows):
    """The tokens that each of the new rows may attend to."""
    if mask is None:
        return [sorted(tokens) for _ in range(rows)]
    if isinstance(mask, str):  # "causal"
        first = len(tokens) - rows + 1
        return [sorted(tokens[: first + row]) for row in range(rows)]
    if mask.shape[-1] != len(tokens):
        return [f"a mask of {mask.shape[-1]} for {len(tokens)} columns"] * rows
    seen = mask.reshape(rows, len(tokens)).tolist()
    return [
        sorted(token for token, is_seen in zip(tokens, row) if is_seen) for row in seen
    ]


def update(cache, tokens):
    """As a model does: it asks for the mask, then gives new K and V."""
    hidden = mx.zeros((1, len(tokens), 1))
    mask = create_attention_mask(hidden, cache, WINDOW, RETURN_ARRAY)
    pair = cache.update_and_fetch(make(tokens, KEY_DIM), make(tokens, VALUE_DIM))
    return see(mask, name_tokens(*pair), len(tokens))


def restore_numbers(cache, packed):
    """Quantized K or V as numbers."""
    return mx.dequantize(*packed, group_size=cache.group_size, bits=cache.bits)


def update_quantized(cache, tokens):
    """As a model does: it asks for the mask, then gives new K and V."""
    mask = create_attention_mask(mx.zeros((1, len(tokens), 1)), cache)
    pair = cache.update_and_fetch(make(tokens, KEY_DIM), make(tokens, VALUE_DIM))
    keys, values = (restore_numbers(cache, packed) for packed in pair)
    return see(mask, name_tokens(keys, values), len(tokens))


def update_turning(cache, tokens):
    """As generate_step does: the mask, new K and V, then it may quantize the cache."""
    mask = create_attention_mask(mx.zeros((1, len(tokens), 1)), cache)
    pair = cache.update_and_fetch(make(tokens, KEY_DIM), make(tokens, VALUE_DIM))
    if hasattr(cache, "bits"):
        pair = [restore_numbers(cache, packed) for packed in pair]
    caches = [cache]
    maybe_quantize_kv_cache(caches, START, GROUP_SIZE, BITS)
    return caches[0], see(mask, name_tokens(*pair), len(tokens))


def update_chunked(cache, tokens):
    """As mlx_lm.models.llama4 does: it drops old tokens from the front, makes the mask of
    chunks, then gives new K and V."""
    cache.maybe_trim_front()
    end = cache.offset + len(tokens)
    rows = mx.arange(cache.offset, end)[:, None]
    columns = mx.arange(cache.start_position, end)
    mask = (columns <= rows) & (columns // cache.chunk_size == rows // cache.chunk_size)
    pair = cache.update_and_fetch(make(tokens, KEY_DIM), make(tokens, VALUE_DIM))
    return see(mask, name_tokens(*pair), len(tokens))


def read_state(cache):
    """The tokens in `cache.state`."""
    keys, values, offset = cache.state[:3]
    if keys is None:
        return []
    return sorted(name_tokens(keys[..., :offset, :], values[..., :offset, :]))


def read_view(cache):
    """The tokens that `update_and_fetch` would return."""
    return [] if cache.empty() else sorted(name_tokens(*cache.keys_and_values()))


def read_concatenated(cache):
    """The tokens in `cache.state`."""
    keys, values = cache.state
    return [] if keys is None else sorted(name_tokens(keys, values))


def read_quantized(cache):
    """The tokens in `cache.state`."""
    keys, values, offset = cache.state[:3]
    if offset == 0:
        return []
    cut = [[part[..., :offset, :] for part in packed] for packed in (keys, values)]
    return sorted(name_tokens(*(restore_numbers(cache, packed) for packed in cut)))


def read_quantized_view(cache):
    """The tokens that `update_and_fetch` would return."""
    if cache.offset == 0:
        return []
    return sorted(
        name_tokens(
            *(restore_numbers(cache, packed) for packed in cache.keys_and_values())
        )
    )


def merge(caches):
    """A batch of single caches, as PromptProcessingBatch makes it."""
    return stepping(caches[0].merge(caches), STEP)


def pad_right(cache, lengths):
    """Announces prompts of these lengths, as PromptProcessingBatch.prompt does."""
    padding = [max(lengths) - length for length in lengths]
    cache.prepare(lengths=lengths, right_padding=padding)


def make_rows(rows, length, left, dim):
    """K or V of the new tokens of each row, with padding on both sides, which is 0."""
    padded = [
        [0] * before + [token + 1 for token in row] + [0] * (length - before - len(row))
        for row, before in zip(rows, left)
    ]
    numbers = mx.array(padded, DTYPE)[:, None, :, None]
    return mx.zeros((len(rows), HEADS, length, dim), DTYPE) + numbers


def update_rows(cache, rows, length, left):
    """As a model does; what the tokens of each row see, and where its first one is."""
    if left and any(left):
        cache.prepare(left_padding=left)
    left = left or [0] * len(rows)
    position = [sum(pair) for pair in zip(cache.offset.tolist(), left)]
    mask = create_attention_mask(mx.zeros((1, length, 1)), cache, WINDOW)
    new = [make_rows(rows, length, left, dim) for dim in (KEY_DIM, VALUE_DIM)]
    keys, values = cache.update_and_fetch(*new)
    visible = []
    for row, (tokens, before) in enumerate(zip(rows, left)):
        columns = name_tokens(keys[row : row + 1], values[row : row + 1])
        own = mx.broadcast_to(mask, (len(rows), *mask.shape[1:]))[row]
        seen = see(own, columns, length)
        visible.append(seen[before : before + len(tokens)])
    return visible, position


def read_rows(cache):
    """The tokens of each row in `cache.state`."""
    keys, values, _, left_padding, width = cache.state
    if keys is None:
        return [[] for _ in left_padding.tolist()]
    return [
        sorted(
            name_tokens(
                keys[row, None, :, begin:width], values[row, None, :, begin:width]
            )
        )
        for row, begin in enumerate(left_padding.tolist())
    ]


def restore(cache):
    """A cache made of the state of another one, as load_prompt_cache makes it."""
    made = type(cache).from_state(cache.state)
    if "step" in vars(cache):
        made.step = cache.step
    return made


def store_and_load(cache):
    """A copy of the cache, through a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "cache.safetensors")
        save_prompt_cache(file, [cache])
        (loaded,) = load_prompt_cache(file)
        mx.eval(loaded.state[:2])
    return loaded


def fetch(prompts, tokens):
    """As mlx_lm.server does: the nearest caches, or new ones, and what is left."""
    caches, remaining = prompts.fetch_nearest_cache("model", tokens)
    if caches is None:
        caches = [stepping(KVCache(), STEP) for _ in range(LAYERS)]
    return caches, remaining


def insert(prompts, tokens, caches):
    """As mlx_lm.server does when an answer is done: under the tokens that were read."""
    count = min(cache.offset for cache in caches)
    prompts.insert_cache("model", tokens[:count], caches)
    return count
