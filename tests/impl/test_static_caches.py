"""The layer caches of litgpt, ExecuTorch and flash-linear-attention: mistakes that are
made in them are found, and their ledgers describe no chunk that is right."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from tests.harness.building import make
from tests.impl.released import Mistake, check, each, list_mistakes, load


def stay_below(write: Any) -> Any:
    """Tokens behind position 6 are written over each other."""
    return lambda self, positions, *pair: write(self, positions.clamp(max=6), *pair)


def see_more(make_mask: Any) -> Any:
    """The window of a mask is one token too wide."""

    def change(self: Any, start: int, length: int) -> Any:
        self.window_size += 1
        mask = make_mask(self, start, length)
        self.window_size -= 1
        return mask

    return change


def crop_more(crop: Any) -> Any:
    return lambda self, length: crop(self, length - 1)


def forget_window(update: Any) -> Any:
    """Attention with a window stores tokens without a limit."""
    return lambda self, **fields: update(self, **{**fields, "cache_kwargs": {}})


MASK = "create_causal_mask_for_ring_buffer"
MISTAKES = [
    *list_mistakes(
        "litgpt",
        "litgpt",
        [
            ("", "kv", "KVCache.forward", stay_below),
            ("", "rotating", "KVCache.forward", stay_below),
            ("-compiled", "kv", "KVCache.forward", stay_below),
        ],
    ),
    *list_mistakes(
        "executorch",
        "executorch",
        [
            ("", "kv", "KVCache.update", stay_below),
            ("", "rotating", f"RingKVCache.{MASK}", see_more),
            ("-dynamic", "rotating", f"RingKVCache.{MASK}", see_more),
            ("-sink", "rotating", f"KVCacheWithAttentionSink.{MASK}", see_more),
            ("-quantized", "kv", "QuantizedKVCache.update", stay_below),
        ],
    ),
    *list_mistakes(
        "fla",
        "fla",
        [
            ("", "kv", "FLACache.crop", crop_more),
            ("", "rotating", "FLACache.update", forget_window),
        ],
    ),
]


@each(MISTAKES)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    check(mistake)


@pytest.mark.parametrize(
    ("name", "window", "lengths", "signature"),
    [
        ("litgpt", 3, (2, 1, 1, 1), None),
        ("litgpt", 3, (1, 2), None),
        ("litgpt", 3, (2, 2), "layer-rotating-update-contents"),
        ("executorch", 3, (6, 4), None),
        ("executorch", 3, (6, 5), "layer-rotating-update-contents"),
        ("executorch-sink", 3, (1, 5), None),
        ("executorch-sink", 3, (2, 5), "layer-rotating-update-contents"),
    ],
)
def test_a_chunk_in_a_ring(
    name: str, window: int, lengths: tuple[int, ...], signature: str | None
) -> None:
    backend = load(name)
    ops = [{"op": "update", "length": length} for length in lengths]
    program = make(*ops, kind="rotating", window=window, step=16)
    divergence = run(program, backend).divergence
    assert (divergence and divergence.get_signature(program)) == signature
