"""Each way of driving a released cache shows a mistake that is made in it there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.impl.released import shows_mistake

Change = Callable[[Any], Any]


def lose_last(state: Any) -> Any:
    """A state that leaves its last field out, as 0."""
    return property(lambda self: (*state.fget(self)[:-1], 0), state.fset)


def be_late(make_mask: Any) -> Any:
    """A mask of one token less."""
    return lambda self, N, **form: make_mask(self, max(1, N - 1), **form)


def forget_window(make_mask: Any) -> Any:
    """A mask that knows no window."""
    return lambda self, N, **form: None if N == 1 else "causal"


def keep_one_more(crop: Any) -> Any:
    """A crop that leaves a token too much."""
    return lambda self, count: crop(self, min(0, count + 1))


def crop_like_its_base(crop: Any) -> Any:
    """A crop that forgets the keys of the indexer."""
    return import_module(TORCH).DynamicLayer.crop


def forget_indexer(reorder: Any) -> Any:
    return import_module(TORCH).StaticLayer.reorder_cache


def see_padding(make_padding: Any) -> Any:
    """A mask that shows the columns of padding."""
    return lambda padding: make_padding(padding | True)


def forget_left_padding(overlay: Any) -> Any:
    """Chunks that begin where the padding on the left does."""
    return lambda chunk, padding: overlay(chunk, padding * 0)


def do_nothing(method: Any) -> Any:
    return lambda self, *_: None


def forget_encoder(method: Any) -> Any:
    """What is done with the cache of self attention alone."""
    return lambda self, *args: getattr(self.self_attention_cache, method.__name__)(*args)


def halve(to_quantized: Any) -> Any:
    """Quantizes, and loses the last token."""

    def change(self: Any, **setting: Any) -> Any:
        cache = to_quantized(self, **setting)
        cache.offset -= 1
        return cache

    return change


def add_columns(sizes: Any) -> Any:
    """Announces one column too many."""

    def change(self: Any, length: int) -> Any:
        columns, offset = sizes(self, length)
        return columns + 1, offset

    return change


def blur(dequantize: Any) -> Any:
    return lambda self, packed: dequantize(self, packed) * 1.2


MLX, TORCH = "mlx_lm.models.cache", "transformers.cache_utils"
MASKS = "transformers.masking_utils"
BOTH = "LinearAttentionAnd{}Layer"
MISTAKES: list[tuple[str, str, str, str, str, Change]] = [
    ("mlx-lm-restored", "rotating", MLX, "RotatingKVCache", "state", lose_last),
    ("mlx-lm-restored", "kv", MLX, "KVCache", "state", lose_last),
    ("mlx-lm-restored", "state", MLX, "ArraysCache", "__setitem__", do_nothing),
    ("mlx-lm", "state", MLX, "ArraysCache", "__setitem__", do_nothing),
    ("mlx-lm-max-kv-size", "rotating", MLX, "RotatingKVCache", "make_mask", be_late),
    ("mlx-lm-return-array", "rotating", MLX, "RotatingKVCache", "make_mask",
     forget_window),
    ("mlx-lm-return-array", "kv", MLX, "KVCache", "make_mask", be_late),
    ("mlx-lm-plamo3", "rotating", MLX, "RotatingKVCache", "make_mask", be_late),
    ("mlx-lm-quantized-6", "kv", MLX, "QuantizedKVCache", "trim", do_nothing),
    ("mlx-lm-quantized-4", "kv", MLX, "QuantizedKVCache", "trim", do_nothing),
    ("mlx-lm-quantized-2", "kv", MLX, "QuantizedKVCache", "trim", do_nothing),
    ("mlx-lm-to-quantized", "kv", MLX, "KVCache", "to_quantized", halve),
    ("mlx-lm-concatenate", "kv", MLX, "ConcatenateKVCache", "make_mask", be_late),
    ("mlx-lm-chunked", "kv", MLX, "ChunkedKVCache", "state", lose_last),
    ("transformers", "rotating", TORCH, "DynamicSlidingWindowLayer", "crop",
     keep_one_more),
    ("transformers-chunked", "kv", TORCH, "DynamicSlidingWindowLayer", "crop",
     keep_one_more),
    ("transformers-recorded", "rotating", TORCH, "DynamicSlidingWindowLayer", "crop",
     keep_one_more),
    ("transformers-recorded", "kv", TORCH, "DynamicSlidingWindowLayer", "crop",
     keep_one_more),
    ("transformers-static", "rotating", TORCH, "StaticSlidingWindowLayer",
     "get_mask_sizes", add_columns),
    ("transformers-static", "kv", TORCH, "StaticLayer", "get_mask_sizes", add_columns),
    ("transformers-fp8", "kv", TORCH, "Fp8QuantizedLayer", "_dequantize", blur),
    ("transformers-linear", "state", TORCH, "LinearAttentionLayer", "reset", do_nothing),
    ("transformers-batched", "batch-kv", MASKS, "", "padding_mask_function", see_padding),
    ("transformers-batched", "batch-kv", TORCH, "DynamicLayer", "batch_select_indices",
     do_nothing),
    ("transformers-batched", "batch-kv", TORCH, "DynamicLayer", "reorder_cache",
     do_nothing),
    ("transformers-batched", "batch-rotating", TORCH, "DynamicLayer",
     "batch_repeat_interleave", do_nothing),
    ("transformers-batched", "batch-rotating", MASKS, "", "padding_mask_function",
     see_padding),
    ("transformers-batched-chunked", "batch-kv", MASKS, "", "chunked_overlay",
     forget_left_padding),
    ("transformers-batched-static", "batch-kv", TORCH, "StaticLayer", "reorder_cache",
     do_nothing),
    ("transformers-batched-static", "batch-rotating", TORCH, "StaticSlidingWindowLayer",
     "reorder_cache", do_nothing),
    ("transformers-batched-static-chunked", "batch-kv", MASKS, "", "chunked_overlay",
     forget_left_padding),
    ("transformers-batched-indexed", "batch-kv", TORCH, "DynamicIndexedLayer", "crop",
     crop_like_its_base),
    ("transformers-batched-static-indexed", "batch-kv", TORCH, "StaticIndexedLayer",
     "reorder_cache", forget_indexer),
    ("transformers-batched-quantized", "batch-kv", TORCH, "QuantizedLayer",
     "reorder_cache", do_nothing),
    ("transformers-batched-linear", "batch-state", TORCH, "LinearAttentionLayer",
     "reorder_cache", do_nothing),
    ("transformers-batched-hybrid", "batch-kv", TORCH, BOTH.format("FullAttention"),
     "reorder_cache", do_nothing),
    ("transformers-batched-hybrid", "batch-rotating", TORCH,
     BOTH.format("SlidingWindowAttention"), "reorder_cache", do_nothing),
    ("transformers-batched-hybrid", "batch-state", TORCH,
     BOTH.format("SlidingWindowAttention"), "reorder_cache", do_nothing),
    ("transformers-batched-static-hybrid", "batch-kv", TORCH,
     BOTH.format("StaticFullAttention"), "reorder_cache", do_nothing),
    ("transformers-batched-static-hybrid", "batch-rotating", TORCH,
     BOTH.format("StaticSlidingWindowAttention"), "reorder_cache", do_nothing),
    ("transformers-batched-static-hybrid", "batch-state", TORCH, "LinearAttentionLayer",
     "reset", do_nothing),
    ("transformers-batched-encoder-decoder", "batch-list", TORCH, "EncoderDecoderCache",
     "batch_select_indices", forget_encoder),
    ("transformers-batched-encoder-decoder", "batch-list", TORCH, "EncoderDecoderCache",
     "reset", forget_encoder),
    ("transformers-batched-static-encoder-decoder", "batch-list", TORCH,
     "EncoderDecoderCache", "reorder_cache", forget_encoder),
    ("transformers-batched-hybrid-list", "batch-list", TORCH,
     BOTH.format("SlidingWindowAttention"), "reorder_cache", do_nothing),
    ("transformers-batched-static-hybrid-list", "batch-list", TORCH,
     "LinearAttentionLayer", "reset", do_nothing),
]  # fmt: skip
"""(backend, kind, module, class or "" for a function of the module, attribute, how it is
changed)."""


@pytest.mark.parametrize(
    ("name", "kind", "module", "owner", "attribute", "change"),
    MISTAKES,
    ids=[f"{name}-{kind}-{attribute}" for name, kind, _, _, attribute, _ in MISTAKES],
)
def test_a_mistake_in_the_library_is_found(
    name: str,
    kind: str,
    module: str,
    owner: str,
    attribute: str,
    change: Change,
) -> None:
    pytest.importorskip(module.partition(".")[0])
    library = import_module(module)
    library = getattr(library, owner) if owner else library
    changed = change(getattr(library, attribute))
    assert shows_mistake(name, kind, library, attribute, changed)
