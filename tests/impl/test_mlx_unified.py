"""The unified caches on MLX: what is handed out is a value, and pools are not copied."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from frameworks import HEADS, KEY_DIM, Framework

from lockstep.impl.mlx.backend import OnDevice, open_cache
from lockstep.impl.mlx.causal import CausalCache
from lockstep.impl.shared.causal import Sizes
from tests.harness.building import make

CPU = mx.Device(mx.cpu)
MIB = 1 << 20


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


# --- values -----------------------------------------------------------------------------


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_what_get_returned_never_changes(
    on: Framework, read: bool, permuted: bool
) -> None:
    """Whether or not it was evaluated before: by writes, into holes too, by turned keys,
    by what is loaded."""
    cache = on.causal(layers=2, permuted=permuted)
    cache.forward([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])
    for layer in range(2):
        cache.put(layer, *on.feed([0, 50, 1, 51, 2]))
    saved, held = cache.save(), [cache.get(layer) for layer in range(2)]
    wanted = [0, 50, 1, 51, 2]
    if read:
        mx.eval(held)
    for change in (
        lambda: cache.remove(1, 0, None),
        lambda: cache.forward([3, 4, 5], [0, 0, 0]),
        lambda: [cache.put(layer, *on.feed([9, 9, 9])) for layer in range(2)],
        lambda: mx.eval(cache.get(0)),
        lambda: cache.remove(0, 0, 2),
        lambda: cache.load(saved),
        lambda: cache.forward([7], [2]),
        lambda: [cache.put(layer, *on.feed([9])) for layer in range(2)],
        lambda: mx.eval(cache.get(1)),
    ):
        change()
    for keys, values, mask in held:
        assert on.numpy(keys)[0, 0, :, 0].tolist() == wanted
        values = values.swapaxes(2, 3) if permuted else values
        assert on.numpy(values)[0, 1, :, 1].tolist() == [-n for n in wanted]
        assert (on.numpy(mask)[0] == 0).tolist() == [True, *[False] * 4]


def test_assigning_to_what_get_returned_stays_outside(on: Framework) -> None:
    cache = on.causal(layers=2)
    on.step(cache, [0, 1])
    for array in cache.get(0):
        array[:] = 7
    assert on.see(cache) == [[0], [0, 1]]
    assert on.see(cache, 1) == [[1000], [1000, 1001]]


def test_assigning_to_an_image_stays_outside(on: Framework) -> None:
    cache = on.encoder()
    cache.forward([0], [0], multimodal=[0])
    keys, values = on.feed([5])
    cache.put(0, keys, values)
    for array in (keys, values, *cache.get(0)):
        array[:] = 7
    assert on.numpy(cache.get(0)[0])[0, 0, 0, 0] == 5
    held = cache.get(0)
    cache.put(0, *on.feed([6]))
    assert on.numpy(held[0])[0, 0, 0, 0] == 5


def test_states_never_change_nor_do_checkpoints(on: Framework) -> None:
    cache = on.recurrent(interval=1)
    on.step(cache, [0])
    before = cache.read_states(0)
    conv, delta = on.states(5)
    cache.write_states(0, conv, delta)
    after = cache.read_states(0)
    for array in (conv, delta):
        array[:] = 7
    on.step(cache, [1])
    cache.write_states(0, *on.states(6))
    assert on.read(cache) == [6]
    assert [on.numpy(pair[0])[0, 0, 0] for pair in (before, after)] == [0, 5]
    cache.remove(0, 1, None)
    on.step(cache, [1])
    assert on.read(cache) == [5]


# --- what a step costs ------------------------------------------------------------------


def make_large(in_turn: bool) -> CausalCache:
    """Two layers with 8 MiB of keys and 8 MiB of values each; of each of two sequences
    they have 300 tokens, in turn or one sequence behind the other."""
    cache = CausalCache(Sizes(2, 1 << 14, 600), layers=2)
    sequences = [0, 1] * 300 if in_turn else [0] * 300 + [1] * 300
    positions = [row // 2 if in_turn else row % 300 for row in range(600)]
    mx.eval(pass_tokens(cache, positions, sequences))
    return cache


def pass_tokens(
    cache: CausalCache, positions: list[int], sequences: list[int]
) -> list[Any]:
    """Returns K, V and mask of each layer."""
    cache.forward(positions, sequences)
    token, results = mx.ones((1, HEADS, len(positions), 32)), []
    for layer in range(cache.layers):
        cache.put(layer, token, token)
        results.append(cache.get(layer))
    return results


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("call", ["turn", "save"])
def test_turning_and_saving_copy_no_pool(call: str, in_turn: bool) -> None:
    """Nor does the step after it, while what was saved is held."""
    large, held = make_large(in_turn), []

    def change() -> None:
        if call == "turn":
            large.remove(0, 0, 1)
        else:
            held.append(large.save())
        mx.eval(pass_tokens(large, [300, 301, 302], [0, 0, 0]))

    assert measure(change) < 4 * MIB


def measure(change: Callable[[], None]) -> int:
    """By how many bytes active memory rose at most."""
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    change()
    mx.synchronize()
    return mx.get_peak_memory() - before


def test_the_mask_of_a_prompt_is_not_written_out() -> None:
    """512 rows, 4,096 columns: 8 MiB."""
    cache = CausalCache(Sizes(1, 4096, 4096))
    cache.forward(range(3584), [0] * 3584)
    cache.forward(range(3584, 4096), [0] * 512)
    masks = []

    def make() -> None:
        masks.append(cache.make_mask(cache.get_pass()))
        mx.eval(masks)

    assert measure(make) < MIB
    assert masks[0].shape == (512, 4096)
    assert np.array_equal(np.array(masks[0]) == 0, np.tri(512, 4096, 3584, dtype=bool))


def test_what_was_saved_is_computed_at_once() -> None:
    """8 MiB of memory, of which it would refer to the whole."""
    cache = CausalCache(Sizes(2, 1 << 14, 8))
    before = mx.get_active_memory()
    mx.eval(pass_tokens(cache, [0, 1], [0, 0]))
    saved = cache.save()
    del cache
    gc.collect()
    assert mx.get_active_memory() - before < MIB
    assert [array.shape for array in saved.arrays] == [(1, 1, HEADS, 2, 32)] * 2


def test_a_checkpoint_does_not_keep_the_batch_alive(on: Framework) -> None:
    cache = on.recurrent(interval=1, slots=4)
    cache.conv = [mx.zeros((4, 2, 1 << 18))]  # 2 MiB for each slot
    mx.eval(cache.conv)
    on.step(cache, [0, 0, 0], [0, 1, 2])
    before = mx.get_active_memory()
    cache.write_states(0, mx.ones((3, 2, 1 << 18)) + 4, on.states(5, 5, 5)[1])
    for sequence in (1, 2):
        cache.remove(sequence, 0, None)
    on.step(cache, [1], 0)
    mx.eval(cache.read_states(0))
    cache.pending = ()
    gc.collect()
    held = mx.get_active_memory() - before
    assert 2 * MIB <= held < 3 * MIB


# --- on a device ------------------------------------------------------------------------


def test_the_parts_of_a_wrapper_compute_on_its_device(on: Framework) -> None:
    caches = [{"kind": "causal"}, {"kind": "encoder"}]
    program = make(contract="unified", kind="wrapper", sequences=2, caches=caches)
    cache = open_cache({**program.config, "poison": True}, CPU)
    causal, image = cache.of(0), cache.of(1)
    assert isinstance(causal, OnDevice)
    assert isinstance(image, OnDevice)
    assert (causal.device, image.device) == (CPU, CPU)
    cache.forward([0, 1], [0, 0], [], [0], False)
    causal.put(0, *on.feed([0, 1]))
    assert on.see(causal) == [[0], [0, 1]]
    assert image.cached is False
    image.put(0, *on.feed([5] * 3))
    assert image.cached is True
    assert on.numpy(image.get(0)[0]).shape == (1, HEADS, 3, KEY_DIM)


@pytest.mark.parametrize("holes", [False, True])
def test_a_step_writes_in_place(holes: bool) -> None:
    large = make_large(in_turn=True)
    if holes:
        large.remove(1, 0, None)
    peak = measure(lambda: mx.eval(pass_tokens(large, [300, 301, 302], [0, 0, 0])))
    assert large.places is not None
    assert (large.places.slice is None) == holes
    assert peak < MIB
