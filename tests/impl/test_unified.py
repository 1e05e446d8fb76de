"""The unified caches on each framework, where no generated program looks: their limits,
how often keys are turned, and what errors say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import HEADS, KEY_DIM, Framework

from lockstep.impl.shared.errors import CacheFullError, NotSupportedError, SharedError


def test_a_mask_is_that_of_the_rows_announced(on: Framework) -> None:
    """It is made when asked for; the caller's arrays may hold other rows by then."""
    cache = on.causal()
    positions, sequences = np.arange(3), np.zeros(3, np.int64)
    cache.forward(positions, sequences)
    positions[:], sequences[:] = 0, 1
    cache.put(0, *on.feed([0, 1, 2]))
    mask = on.numpy(cache.get(0)[2])
    assert (mask == 0).tolist() == np.tri(3, dtype=bool).tolist()


def test_sixty_four_sequences_and_positions_beyond_32_bits(on: Framework) -> None:
    cache, far = on.causal(sequences=64, capacity=4), 1 << 40
    on.step(cache, [far], 63, [1])
    assert on.step(cache, [far + 1, 5], [63, 0], [2, 3]) == [[1, 2], [3]]
    assert on.step(cache, [far + 2, far + 3], 63, [4, 5], exceptions=[0]) == [
        [1, 2, 4, 5],
        [1, 2, 4, 5],
    ]


@pytest.mark.parametrize("count", [0, 65])
def test_each_sequence_has_a_bit(on: Framework, count: int) -> None:
    with pytest.raises(ValueError, match=f"sequences must be 1 … 64, not {count}"):
        on.causal(sequences=count)


def test_unused_memory_holds_what_was_asked_for(on: Framework) -> None:
    cache = on.causal(fill=math.nan, cache_padding=8)
    on.step(cache, [0, 1])
    for array in cache.get(0)[:2]:
        assert np.isnan(on.numpy(array)[:, :, 2:]).all()


def test_what_follows_a_gap_turns_in_all_layers_at_once(
    on: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope, shapes = on.module["rope"].Rope, []
    once = rope.turn
    monkeypatch.setattr(
        rope,
        "turn",
        lambda self, keys, by: shapes.append((*keys.shape, by)) or once(self, keys, by),
    )
    cache = on.causal(layers=3, rope=(10_000.0, 100.0))
    on.step(cache, [0, 0, 1, 2, 3, 1, 2], [0, 1, 0, 0, 0, 1, 1])
    cache.remove(0, 1, 3)
    assert shapes == [(3, 1, HEADS, 1, KEY_DIM, -2)]


# --- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda on, c: c.put(2, *on.feed([1, 2])), "no layer 2; the layers are 0 … 1"),
        (lambda on, c: c.put(0, *on.feed([1, 2, 3])), r"\[1, 2, 3, 4\].* 2 rows"),
        (lambda on, c: c.put(0, *on.feed([1, 2], heads=3)), r"\(3, 4, 3\).*\(2, 4, 3\)"),
        (lambda on, c: c.put(0, *on.feed([1, 2], key_dim=6)), r"\(2, 6, 3\)"),
        (lambda on, c: c.put(0, *on.feed([1, 2], value_dim=1)), r"\(2, 4, 1\)"),
        (
            lambda on, c: c.put(0, on.feed([1, 2])[0], on.feed([1, 2], heads=1)[1]),
            "V has 1",
        ),
        (
            lambda on, c: c.put(0, on.feed([1, 2])[0][0], on.feed([1, 2])[1]),
            "K has shape",
        ),
        (lambda on, c: c.get(1), "layer 1 has no content"),
        (lambda on, c: c.forward([0] * 9, [0] * 9), "9 rows, but .* at most 8"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    on: Framework, call: Callable[[Framework, Any], None], words: str
) -> None:
    cache = on.causal(layers=2)
    cache.forward([0, 1], [0, 0])
    cache.put(0, *on.feed([0, 1]))
    with pytest.raises(ValueError, match=words):
        call(on, cache)
    assert on.see(cache) == [[0], [0, 1]]


def test_a_refusal_gives_its_reason(on: Framework) -> None:
    cache = on.causal(sequences=2, capacity=3, rope=None)
    on.step(cache, [0, 1, 2, 3])
    with pytest.raises(NotSupportedError, match="cannot rotate their keys"):
        cache.remove(0, 1, 2)
    with pytest.raises(
        CacheFullError, match="3 tokens do not fit: 2 of 6 cells are free"
    ):
        cache.forward([4, 5, 6], [0] * 3)
    cache = on.causal(sequences=2)
    on.step(cache, [0, 1, 2, 3])
    cache.copy_prefix(0, 1, 3)
    with pytest.raises(
        SharedError, match="position 1 on would move, but sequence 0 shares"
    ):
        cache.remove(0, 0, 1)


def test_a_first_put_of_two_forms_fixes_none(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="K has 2 heads, V has 1"):
        cache.put(0, on.feed([0])[0], on.feed([0], heads=1)[1])
    cache.put(0, *on.feed([0], heads=5))
    assert tuple(cache.get(0)[0].shape) == (1, 5, 1, KEY_DIM)


def test_a_key_of_odd_length_has_no_pairs(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="must be even to rotate keys, but is 5"):
        cache.put(0, *on.feed([0], key_dim=5))


def test_an_image_needs_a_row_and_keeps_the_shape_of_its_layer(on: Framework) -> None:
    cache = on.encoder()
    with pytest.raises(ValueError, match="no pass is open"):
        cache.put(0, *on.feed([5]))
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="no row of the open pass is an image"):
        cache.put(0, *on.feed([5]))
    cache.forward([0], [0], multimodal=[0])
    cache.put(0, *on.feed([5] * 3))
    cache.put(1, *on.feed([6] * 2))
    cache.forward([1], [0], multimodal=[0])
    with pytest.raises(ValueError, match=r"\[1, 2, 4, 4\].*must have \[1, 2, 3, 4\]"):
        cache.put(0, *on.feed([7] * 4))
    assert [on.hold(cache.get(layer)) for layer in (0, 1)] == [[5] * 3, [6] * 2]


def test_states_that_are_refused_change_nothing(on: Framework) -> None:
    cache = on.recurrent(slots=2, interval=2)
    on.step(cache, [0, 0], [0, 1])
    cache.write_states(0, *on.states(5, 6))
    conv, delta = on.states(7, 8)
    for bad in ((conv[:1], delta), (conv, delta[:, :1]), (delta, delta)):
        with pytest.raises(ValueError, match="the states have shape"):
            cache.write_states(0, *bad)
    assert on.read(cache) == [5, 6]
    for call, error, words in (
        (
            lambda: cache.forward([1, 2, 1], [0, 0, 1]),
            NotSupportedError,
            r"\[1, 2\] rows",
        ),
        (lambda: cache.forward([0], [2]), CacheFullError, "0 of 2 slots are free"),
    ):
        with pytest.raises(error, match=words):
            call()
    on.step(cache, [1, 1], [0, 1])
    assert on.read(cache) == [5, 6]
    cache.write_states(0, *on.states(7, 8))
    for position in (2, 3):
        on.step(cache, [position] * 2, [0, 1])
    for end, words in (
        (None, "no checkpoint at position 1"),
        (3, "can lose only its last"),
    ):
        with pytest.raises(NotSupportedError, match=words):
            cache.remove(0, 2, end)
