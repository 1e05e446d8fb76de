"""Each way of driving a third-party cache shows a mistake that is made in it there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.impl.released import Mistake, check, each, edit, list_mistakes


def lose_last(state: Any) -> Any:
    """A state that leaves its last field out, as 0."""
    return property(lambda self: (*state.fget(self)[:-1], 0), state.fset)


def be_late(make_mask: Any) -> Any:
    """A mask of one token less."""
    return lambda self, N, **form: make_mask(self, max(1, N - 1), **form)


def keep_one_more(crop: Any) -> Any:
    """A crop that leaves a token too much."""
    return lambda self, count: crop(self, min(0, count + 1))


def do_nothing(method: Any) -> Any:
    return lambda self, *_: None


def forget_encoder(method: Any) -> Any:
    """What is done with the cache of self attention alone."""
    return lambda self, *args: getattr(self.self_attention_cache, method.__name__)(*args)


ADD_COLUMN = edit("return kv_length", "return kv_length + 1")
SEE_PADDING = edit("[batch_idx, kv_idx]", "[batch_idx, kv_idx] | True")
FORGET_PADDING = edit("left_padding[batch_idx]", "0")  # where chunks begin
MLX, TORCH = "mlx_lm.models.cache", "transformers.cache_utils"
MASKS = "transformers.masking_utils"
MISTAKES = [
    *list_mistakes(MLX, "mlx-lm", [
        ("-restored", "rotating", "RotatingKVCache.state", lose_last),
        ("-restored", "kv", "KVCache.state", lose_last),
        ("-restored", "state", "ArraysCache.__setitem__", do_nothing),
        ("", "state", "ArraysCache.__setitem__", do_nothing),
        ("-max-kv-size", "rotating", "RotatingKVCache.make_mask", be_late),
        ("-return-array", "rotating", "RotatingKVCache.make_mask",
         edit("offset + N > window_size or return_array", "False")),
        ("-return-array", "kv", "KVCache.make_mask", be_late),
        ("-plamo3", "rotating", "RotatingKVCache.make_mask", be_late),
        ("-quantized-6", "kv", "QuantizedKVCache.trim", do_nothing),
        ("-quantized-4", "kv", "QuantizedKVCache.trim", do_nothing),
        ("-quantized-2", "kv", "QuantizedKVCache.trim", do_nothing),
        ("-to-quantized", "kv", "KVCache.to_quantized",
         edit("= self.offset", "= self.offset - 1")),
        ("-concatenate", "kv", "ConcatenateKVCache.make_mask", be_late),
        ("-chunked", "kv", "ChunkedKVCache.state", lose_last),
    ]),
    *list_mistakes(TORCH, "transformers", [
        ("", "rotating", "DynamicSlidingWindowLayer.crop", keep_one_more),
        ("-chunked", "kv", "DynamicSlidingWindowLayer.crop", keep_one_more),
        ("-recorded", "rotating", "DynamicSlidingWindowLayer.crop", keep_one_more),
        ("-recorded", "kv", "DynamicSlidingWindowLayer.crop", keep_one_more),
        ("-static", "rotating", "StaticSlidingWindowLayer.get_mask_sizes", ADD_COLUMN),
        ("-static", "kv", "StaticLayer.get_mask_sizes", ADD_COLUMN),
        ("-fp8", "kv", "Fp8QuantizedLayer._dequantize", edit("scale)", "scale * 1.2)")),
        ("-linear", "state", "LinearAttentionLayer.reset", do_nothing),
    ]),
    *list_mistakes(MASKS, "transformers-batched", [
        ("", "batch-kv", "padding_mask_function", SEE_PADDING),
        ("", "batch-rotating", "padding_mask_function", SEE_PADDING),
        ("-chunked", "batch-kv", "chunked_overlay", FORGET_PADDING),
        ("-static-chunked", "batch-kv", "chunked_overlay", FORGET_PADDING),
    ]),
    *list_mistakes(TORCH, "transformers-batched", [
        ("", "batch-kv", "DynamicLayer.batch_select_indices", do_nothing),
        ("", "batch-kv", "DynamicLayer.reorder_cache", do_nothing),
        ("", "batch-rotating", "DynamicLayer.batch_repeat_interleave", do_nothing),
        ("-static", "batch-kv", "StaticLayer.reorder_cache", do_nothing),
        ("-static", "batch-rotating",
         "StaticSlidingWindowLayer.reorder_cache", do_nothing),
        ("-indexed", "batch-kv", "DynamicIndexedLayer.crop",
         lambda _: import_module(TORCH).DynamicLayer.crop),
        ("-static-indexed", "batch-kv",
         "StaticIndexedLayer.reorder_cache",
         lambda _: import_module(TORCH).StaticLayer.reorder_cache),
        ("-quantized", "batch-kv", "QuantizedLayer.reorder_cache", do_nothing),
        ("-linear", "batch-state", "LinearAttentionLayer.reorder_cache", do_nothing),
        ("-hybrid", "batch-kv",
         "LinearAttentionAndFullAttentionLayer.reorder_cache", do_nothing),
        ("-hybrid", "batch-rotating",
         "LinearAttentionAndSlidingWindowAttentionLayer.reorder_cache", do_nothing),
        ("-hybrid", "batch-state",
         "LinearAttentionAndSlidingWindowAttentionLayer.reorder_cache", do_nothing),
        ("-static-hybrid", "batch-kv",
         "LinearAttentionAndStaticFullAttentionLayer.reorder_cache", do_nothing),
        ("-static-hybrid", "batch-rotating",
         "LinearAttentionAndStaticSlidingWindowAttentionLayer.reorder_cache", do_nothing),
        ("-static-hybrid", "batch-state", "LinearAttentionLayer.reset", do_nothing),
        ("-encoder-decoder", "batch-list",
         "EncoderDecoderCache.batch_select_indices", forget_encoder),
        ("-encoder-decoder", "batch-list", "EncoderDecoderCache.reset", forget_encoder),
        ("-static-encoder-decoder", "batch-list",
         "EncoderDecoderCache.reorder_cache", forget_encoder),
        ("-hybrid-list", "batch-list",
         "LinearAttentionAndSlidingWindowAttentionLayer.reorder_cache", do_nothing),
        ("-static-hybrid-list", "batch-list", "LinearAttentionLayer.reset", do_nothing),
    ]),
]  # fmt: skip


@each(MISTAKES)
def test_a_mistake_in_the_library_is_found(mistake: Mistake) -> None:
    check(mistake)
