"""The unified caches on each framework, where no generated program looks: their limits,
how often keys are turned, and what no program gets wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from frameworks import HEADS, KEY_DIM, Framework

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.wrapper import WrapperCache


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


def test_a_key_of_odd_length_has_no_pairs(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="must be even to rotate keys, but is 5"):
        cache.put(0, *on.feed([0], key_dim=5))


def test_states_that_are_refused_change_nothing(on: Framework) -> None:
    cache = on.recurrent(slots=2, interval=2)
    on.step(cache, [0, 0], [0, 1])
    cache.write_states(0, *on.states(5, 6))
    conv, delta = on.states(7, 8)
    for bad in ((conv[:1], delta), (conv, delta[:, :1]), (delta, delta)):
        with pytest.raises(ValueError, match="the states have shape"):
            cache.write_states(0, *bad)
    assert on.read(cache) == [5, 6]


def test_a_wrapper_loads_into_all_caches_or_none(on: Framework) -> None:
    """Programs load what another wrapper saved once in a thousand programs."""

    def save(sequences: int) -> list[Any]:
        return WrapperCache([on.encoder(), on.causal(sequences=sequences)], 1).save()

    encoder = on.encoder()
    cache = WrapperCache([encoder, on.causal(sequences=1)], 1)
    cache.forward([0], [0], multimodal=[0])
    encoder.put(0, *on.feed([0, 1, 2]))
    for saved, why in (
        (save(2), "load: sequences was 2, but is 1 here"),
        (save(1)[:1], "load: 1 caches were saved, but here are 2"),
    ):
        with pytest.raises(MisuseError, match=f"^{why}$"):
            cache.load(saved)
        assert encoder.cached
    cache.load(save(1))
    assert not encoder.cached
