"""The unified caches on each framework: where tokens go, what rows see, what errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from frameworks import DELTA, HEADS, INSTALLED, KEY_DIM, VALUE_DIM, Framework

from lockstep.impl.shared.errors import CacheFullError, NotSupportedError, SharedError

DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


def make_holes(on: Framework, **options: Any) -> Any:
    """Cells 0, 2 and 4 hold the tokens 0, 1 and 2 of sequence 0; 1 and 3 are free."""
    cache = on.causal(**options)
    cache.forward([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])
    for layer in range(cache.layers):
        cache.put(layer, *on.feed([n + 1000 * layer for n in (0, 50, 1, 51, 2)]))
    cache.remove(1, 0, None)
    return cache


# --- where tokens go --------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 3])
def test_a_scatter_into_holes_leaves_the_other_cells_alone(
    on: Framework, layers: int
) -> None:
    cache = make_holes(on, layers=layers)
    rows = on.step(cache, [0, 1, 2], 2, [20, 21, 22])
    assert cache.current.cells.tolist() == [1, 3, 5]
    assert rows == [[20], [20, 21], [20, 21, 22]]
    assert on.step(cache, [3], 0) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_slice_and_a_scatter_store_the_same(
    on: Framework, dtype: str, permuted: bool
) -> None:
    source = np.random.default_rng(5)
    keys = source.standard_normal((1, HEADS, 3, KEY_DIM))
    values = source.standard_normal((1, HEADS, 3, VALUE_DIM))
    results = []
    for make, cells in ((on.causal, [0, 1, 2]), (partial(make_holes, on), [1, 3, 5])):
        cache = make(dtype=dtype, permuted=permuted)
        cache.forward([0, 1, 2], [2, 2, 2])
        cache.put(0, on.array(keys), on.array(values))
        assert cache.current.cells.tolist() == cells
        got = cache.get(0)
        assert {on.dtype(array) for array in got[:2]} == {dtype}
        k, v, mask = (on.numpy(array) for array in got)
        v = v.swapaxes(2, 3) if permuted else v
        seen = mask[-1] == 0
        results.append((k[:, :, seen], v[:, :, seen]))
    for one, other, put in zip(*results, (keys, values), strict=True):
        assert one.shape == put.shape
        assert (one == other).all()
        assert (one == on.numpy(on.array(put, dtype))).all()


def test_permuted_values_are_the_others_transposed(on: Framework) -> None:
    plain, permuted = make_holes(on), make_holes(on, permuted=True)
    for cache in (plain, permuted):
        cache.forward([3, 4, 5], [0, 0, 0])
        cache.put(0, *on.feed([3, 4, 5]))
    (k, v, mask), (keys, values, other) = (
        [on.numpy(array) for array in cache.get(0)] for cache in (plain, permuted)
    )
    assert values.shape == (1, HEADS, VALUE_DIM, v.shape[2])
    assert (values == v.swapaxes(2, 3)).all()
    assert (k == keys).all()
    assert (mask == other).all()


def test_a_full_cache_refuses_and_no_pass_is_open(on: Framework) -> None:
    cache = on.causal(sequences=1, capacity=3)
    on.step(cache, [0, 1])
    with pytest.raises(CacheFullError, match="2 tokens, and 1 of 3 cells are free"):
        cache.forward([2, 3], [0, 0])
    with pytest.raises(ValueError, match="no pass is open"):
        cache.get(0)
    assert on.step(cache, [2]) == [[0, 1, 2]]


# --- what rows see ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_has_its_dtype_and_is_padded_both_ways(on: Framework, dtype: str) -> None:
    cache = on.causal(mask=dtype, mask_padding=4, cache_padding=8)
    cache.forward([0, 1, 2, 3, 4], [0] * 5)
    cache.put(0, *on.feed(range(5)))
    keys, _, mask = cache.get(0)
    assert on.dtype(mask) == dtype
    content = on.numpy(mask)
    assert content.shape == (8, 8)
    assert keys.shape[2] == 8
    assert ((content == 0) == (np.tri(8) * np.outer(np.arange(8) < 5, 1))).all()
    assert np.isneginf(content[content != 0]).all()


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"window": 2}, [3, 4, 5]),
        ({"window": 2, "memory": 4}, [3, 4, 5]),
        ({"chunk": 4}, [4, 5]),
        ({"chunk": 4, "window": 1}, [4, 5]),
    ],
)
def test_windows_chunks_and_rows_that_look_ahead(
    on: Framework, options: dict[str, int], last: list[int]
) -> None:
    cache = on.causal(**options)
    on.step(cache, range(4))
    rows = on.step(cache, [4, 5])
    assert rows == [[n for n in rows[0] if n < 5], last]
    assert rows[0][-1] == 4
    cache.remove(0, 4, None)
    rows = on.step(cache, [4, 5], exceptions=[0])
    assert rows[0][-2:] == [4, 5]


def test_rows_of_several_sequences_see_their_own(on: Framework) -> None:
    cache = on.causal(window=1)
    on.step(cache, [0, 1, 2], 0)
    cache.copy_prefix(0, 1, 2)
    rows = on.step(cache, [3, 2, 0], [0, 1, 2], [3, 12, 20])
    assert rows == [[2, 3], [1, 12], [20]]


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


def test_reserve_has_the_largest_form_and_changes_nothing(on: Framework) -> None:
    cache = on.causal(cache_padding=32, mask_padding=4, layers=2)
    on.step(cache, [0, 1])
    table = cache.cells.table.copy()
    cache.forward([7, 8, 9, 10, 11], [1] * 5, reserve=True)
    for layer in range(2):
        cache.put(layer, *on.feed([99] * 5))
        keys, values, mask = cache.get(layer)
        assert tuple(keys.shape) == (1, HEADS, 64, KEY_DIM)
        assert tuple(values.shape) == (1, HEADS, 64, VALUE_DIM)
        assert tuple(mask.shape) == (8, 64)
        assert not (on.numpy(keys) == 99).any()
    assert (cache.cells.table == table).all()
    assert on.step(cache, [2])[0] == [0, 1, 2]


# --- keys that move ---------------------------------------------------------------------


def turn(keys: Any, base: float, position: int) -> Any:
    """keys [.., KEY_DIM], turned to a position in double precision."""
    half = KEY_DIM // 2
    x, y = keys[..., :half], keys[..., half:]
    angles = position * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([x * cos - y * sin, x * sin + y * cos], axis=-1)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_what_follows_a_gap_turns_in_all_layers_at_once(
    on: Framework,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    error: float,
    permuted: bool,
) -> None:
    """Each layer by its own base; what stands before the gap, V and other sequences stay
    as they are."""
    rope, shapes = on.module["rope"].Rope, []
    once = rope.turn
    monkeypatch.setattr(
        rope,
        "turn",
        lambda self, keys, by: shapes.append((*keys.shape, by)) or once(self, keys, by),
    )
    bases, source = (10_000.0, 100.0), np.random.default_rng(7)
    cache = on.causal(dtype=dtype, layers=3, rope=bases, permuted=permuted)
    keys = source.standard_normal((3, 1, HEADS, 7, KEY_DIM))
    values = source.standard_normal((3, 1, HEADS, 7, VALUE_DIM))
    cache.forward([0, 0, 1, 2, 3, 1, 2], [0, 1, 0, 0, 0, 1, 1])
    for layer in range(3):
        cache.put(layer, on.array(keys[layer]), on.array(values[layer]))
    cache.remove(0, 1, 3)
    assert shapes == [(3, 1, HEADS, 1, KEY_DIM, -2)]
    cache.forward([2, 3], [0, 1])  # into the two cells that the gap left
    assert cache.current.cells.tolist() == [2, 3]
    for layer in range(3):
        cache.put(layer, *on.feed([8, 9]))
        k, v, mask = (on.numpy(array) for array in cache.get(layer))
        v = v.swapaxes(2, 3) if permuted else v
        assert np.flatnonzero(mask[0] == 0).tolist() == [0, 2, 4]
        ideal = turn(keys[layer, :, :, 4], bases[layer % 2], -2)
        assert np.abs(k[:, :, 4] - ideal).max() < error
        assert np.abs(k[:, :, 4] - keys[layer, :, :, 4]).max() > 0.1
        stay = [0, 1, 5, 6]
        assert (k[:, :, stay] == on.numpy(on.array(keys[layer], dtype))[:, :, stay]).all()
        stay = [0, 1, 4, 5, 6]
        stored = on.numpy(on.array(values[layer], dtype))
        assert (v[:, :, stay] == stored[:, :, stay]).all()


def test_tokens_move_in_whatever_order_their_cells_are(on: Framework) -> None:
    """Cells 4, 2 and 6, in the order of positions, are no neighbours."""
    cache = on.causal(layers=2, capacity=8)
    keys = np.random.default_rng(3).standard_normal((1, HEADS, 7, KEY_DIM))
    _, values = on.feed(range(7))
    cache.forward([0, 1, 3, 8, 2, 9, 4], [0, 0, 0, 1, 0, 1, 0])
    for layer in range(2):
        cache.put(layer, on.array(keys), values)
    cache.remove(0, 1, 2)
    assert cache.cells.indexes[0].cells.tolist() == [0, 4, 2, 6]
    cache.forward([4, 5], [0, 1])
    for layer in range(2):
        cache.put(layer, *on.feed([8, 9]))
        held = on.numpy(cache.get(layer)[0])
        for cell in (2, 4, 6):
            ideal = turn(keys[:, :, cell], 10_000.0, -1)
            assert np.abs(held[:, :, cell] - ideal).max() < 1e-6
        assert (held[:, :, [0, 3, 5]] == keys[:, :, [0, 3, 5]].astype(np.float32)).all()


def test_a_shared_prefix_takes_no_cells_and_cannot_move(on: Framework) -> None:
    cache = on.causal()
    on.step(cache, range(4))
    free = cache.cells.free
    cache.copy_prefix(0, 1, 3)
    assert cache.cells.free == free
    with pytest.raises(SharedError, match="follows position 1 of sequence 0 is shared"):
        cache.remove(0, 0, 1)
    assert on.step(cache, [3], 1, [13]) == [[0, 1, 2, 13]]
    assert on.step(cache, [4]) == [[0, 1, 2, 3, 4]]
    cache.remove(0, 0, None)
    assert on.step(cache, [4], 1, [14]) == [[0, 1, 2, 13, 14]]


def test_keys_without_rotation_cannot_move(on: Framework) -> None:
    cache = on.causal(rope=None)
    on.step(cache, range(4))
    with pytest.raises(NotSupportedError, match="cannot be turned"):
        cache.remove(0, 1, 2)
    cache.remove(0, 3, 4)
    assert on.step(cache, [3], 0, [13]) == [[0, 1, 2, 13]]


def test_a_key_of_odd_length_has_no_pairs(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="a key of 5 numbers has no pairs"):
        cache.put(0, *on.feed([0], key_dim=5))
    cache.put(0, *on.feed([0]))
    assert on.see(cache) == [[0]]


# --- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda on, c: c.put(2, *on.feed([1, 2])), "layer 2 is none of 0 … 1"),
        (lambda on, c: c.put(-1, *on.feed([1, 2])), "layer -1 is none"),
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
        (lambda on, c: c.get(1), "layer 1 was never put"),
        (lambda on, c: c.get(2), "layer 2 was never put"),
        (lambda on, c: c.forward([-3], [0]), "position -3 is negative"),
        (lambda on, c: c.forward([0], [3]), "sequence 3 is none of 0 … 2"),
        (lambda on, c: c.forward([0] * 9, [0] * 9), "9 rows; at most 8"),
        (lambda on, c: c.copy_prefix(1, 1, 0), "sequence 1 cannot be copied onto itself"),
        (lambda on, c: c.remove(0, 5, 4), "begin 5 lies behind end 4"),
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


@pytest.mark.parametrize(
    "end",
    [
        lambda cache: cache.remove(1, 0, None),
        lambda cache: cache.copy_prefix(0, 1, 1),
        lambda cache: cache.load(cache.save()),
        lambda cache: cache.close(),
    ],
)
def test_nothing_can_be_put_or_got_after_a_pass(
    on: Framework, end: Callable[[Any], None]
) -> None:
    cache = on.causal()
    on.step(cache, [0])
    end(cache)
    with pytest.raises(ValueError, match="no pass is open"):
        cache.put(0, *on.feed([0]))
    with pytest.raises(ValueError, match="no pass is open"):
        cache.get(0)


def test_a_first_put_of_two_forms_fixes_none(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="K has 2 heads, V has 1"):
        cache.put(0, on.feed([0])[0], on.feed([0], heads=1)[1])
    cache.put(0, *on.feed([0], heads=5))
    assert tuple(cache.get(0)[0].shape) == (1, 5, 1, KEY_DIM)


def test_a_memory_must_hold_the_window(on: Framework) -> None:
    with pytest.raises(ValueError, match="memory 2 is smaller than the window of 4"):
        on.causal(sequences=1, memory=2, window=4)
    assert on.causal(sequences=2, memory=2, window=4).memory == 5


@pytest.mark.parametrize("count", [0, 65])
def test_each_sequence_has_a_bit(on: Framework, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} sequences; 1 … 64"):
        on.causal(sequences=count)


# --- put aside --------------------------------------------------------------------------


@pytest.mark.parametrize("rope", [None, (10_000.0,)])
def test_what_was_saved_is_independent_of_the_cache(on: Framework, rope: Any) -> None:
    cache = make_holes(on, layers=2, rope=rope)
    saved = cache.save()
    for _ in range(2):
        on.step(cache, [3, 4], 0, [93, 94])
        on.step(cache, [0, 1], 1, [90, 91])
        if rope:
            cache.remove(0, 0, 2)
        cache.load(saved)
        assert cache.cells.free == 3 * 16 - 3
        assert on.step(cache, [3]) == [[0, 1, 2, 3]]
        assert on.step(cache, [0], 1, [60]) == [[60]]


def test_an_empty_cache_can_be_saved_and_loaded(on: Framework) -> None:
    cache = on.causal()
    nothing = cache.save()
    on.step(cache, [0, 1])
    cache.load(nothing)
    assert on.step(cache, [0], 0, [7]) == [[7]]
    cache.remove(0, 0, None)
    empty = cache.save()
    on.step(cache, [0, 1])
    cache.load(empty)
    assert on.step(cache, [0], 0, [8]) == [[8]]


# --- an encoded image -------------------------------------------------------------------


def see_image(on: Framework, cache: Any, layer: int = 0) -> float | None:
    pair = cache.get(layer)
    if pair is None:
        return None
    keys, values = (on.numpy(array) for array in pair)
    assert (values == -keys[0, 0, 0, 0]).all()
    return float(keys[0, 0, 0, 0])


def test_an_image_stays_until_another_or_its_removal(on: Framework) -> None:
    cache = on.encoder()
    for position, number in ((2, 5), (7, 6)):
        cache.forward([position, position + 1], [0, 0], multimodal=[0])
        assert see_image(on, cache) == (None if number == 5 else 5)
        cache.put(0, *on.feed([number] * 3))
        assert (cache.cached, see_image(on, cache)) == (True, number)
    cache.remove(0, 2, 7)
    assert cache.cached
    cache.forward([9], [0])
    assert see_image(on, cache) == 6
    cache.remove(0, 7, None)
    assert not cache.cached
    cache.forward([7], [0])
    assert see_image(on, cache) is None


def test_the_first_image_fixes_the_shape_of_its_layer(on: Framework) -> None:
    cache = on.encoder()
    cache.forward([0], [0], multimodal=[0])
    cache.put(0, *on.feed([5] * 3))
    cache.put(1, *on.feed([6] * 2))
    cache.forward([1], [0], multimodal=[0])
    with pytest.raises(ValueError, match=r"\[1, 2, 4, 4\].*layer 0 had \[1, 2, 3, 4\]"):
        cache.put(0, *on.feed([7] * 4))
    assert (see_image(on, cache, 0), see_image(on, cache, 1)) == (5, 6)


def test_an_image_needs_a_row_and_a_pass(on: Framework) -> None:
    cache = on.encoder()
    with pytest.raises(ValueError, match="no pass is open"):
        cache.put(0, *on.feed([5]))
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="no row of the open pass stands for an image"):
        cache.put(0, *on.feed([5]))
    with pytest.raises(NotSupportedError):
        cache.copy_prefix(0, 1, 1)
    cache.forward([0], [0], reserve=True)
    cache.put(0, *on.feed([5]))
    assert (cache.cached, cache.get(0)) == (False, None)


# --- states -----------------------------------------------------------------------------


def advance(
    on: Framework, cache: Any, position: int, sequences: list[int], *numbers: float
) -> list[float]:
    """A pass of one row for each sequence; what their states were in layer 0."""
    on.step(cache, [position] * len(sequences), sequences)
    before = on.read(cache)
    for layer in range(cache.layers):
        cache.write_states(layer, *on.states(*(n + 1000 * layer for n in numbers)))
    assert on.read(cache) == list(numbers)
    return before


@pytest.mark.parametrize("layers", [1, 2])
def test_a_copied_state_is_shared_until_one_goes_on(on: Framework, layers: int) -> None:
    cache = on.recurrent(slots=2, layers=layers)
    assert advance(on, cache, 0, [0], 5) == [0]
    cache.copy_prefix(0, 1, 1)
    assert len(cache.slots.free) == 1
    assert advance(on, cache, 1, [1], 6) == [5]
    assert advance(on, cache, 1, [0], 7) == [5]
    assert advance(on, cache, 2, [1, 0], 8, 9) == [6, 7]
    more = 1000 * (layers - 1)
    assert on.read(cache, layers - 1) == [8 + more, 9 + more]


def test_states_lie_in_any_slots(on: Framework) -> None:
    """Of one sequence, of neighbours, of neighbours backwards, and of others."""
    cache = on.recurrent()
    assert advance(on, cache, 0, [0, 1, 2], 1, 2, 3) == [0, 0, 0]
    assert advance(on, cache, 1, [2, 1, 0], 6, 5, 4) == [3, 2, 1]
    assert advance(on, cache, 2, [0, 2], 7, 9) == [4, 6]
    assert advance(on, cache, 2, [1], 8) == [5]
    assert advance(on, cache, 3, [1, 2, 0], 0, 0, 0) == [8, 9, 7]


def test_a_slot_that_is_used_again_starts_with_zeros(on: Framework) -> None:
    cache = on.recurrent(slots=1)
    advance(on, cache, 0, [0], 5)
    with pytest.raises(CacheFullError, match="1 states, and 0 of 1 slots are left"):
        cache.forward([0], [1])
    cache.remove(0, 0, None)
    assert advance(on, cache, 0, [1], 6) == [0]


@pytest.mark.parametrize("shared", [False, True])
def test_a_removed_end_goes_back_to_a_checkpoint(on: Framework, shared: bool) -> None:
    cache = on.recurrent(interval=2, kept=2, layers=2)
    for position in range(6):
        advance(on, cache, position, [0], 10 + position)
    if shared:
        cache.copy_prefix(0, 1, 6)
    assert [cache.can_resume(0, at) for at in range(7)] == [1, 0, 0, 1, 0, 1, 1]
    with pytest.raises(NotSupportedError, match="no checkpoint at position 3"):
        cache.remove(0, 4, None)
    with pytest.raises(NotSupportedError, match="cannot forget"):
        cache.remove(0, 1, 2)
    cache.remove(0, 3, None)
    assert advance(on, cache, 3, [0], 33) == [12]
    assert on.read(cache, 1) == [1033]
    assert on.see(cache) == [[0, 1, 2, 3]]
    if shared:
        assert advance(on, cache, 6, [1], 44) == [15]


def test_states_of_another_form_are_refused(on: Framework) -> None:
    cache = on.recurrent()
    advance(on, cache, 0, [0, 1], 5, 6)
    conv, delta = on.states(7, 8)
    for bad in ((conv[:1], delta), (conv, delta[:, :1]), (delta, delta)):
        with pytest.raises(ValueError, match="states of shape"):
            cache.write_states(0, *bad)
    assert on.read(cache) == [5, 6]


def test_reserve_reads_states_and_writes_none(on: Framework) -> None:
    cache = on.recurrent()
    advance(on, cache, 0, [0], 5)
    cache.forward([1, 0], [0, 1], reserve=True)
    assert tuple(cache.read_states(0)[1].shape) == (2, *DELTA)
    cache.write_states(0, *on.states(7, 8))
    assert advance(on, cache, 1, [0], 6) == [5]
    assert advance(on, cache, 0, [1], 6) == [0]


def test_sequences_of_a_pass_have_as_many_rows(on: Framework) -> None:
    cache = on.recurrent()
    with pytest.raises(NotSupportedError, match=r"\[1, 2\] rows"):
        cache.forward([0, 1, 0], [0, 0, 1])
    assert advance(on, cache, 0, [0], 5) == [0]


# --- several at once --------------------------------------------------------------------


def test_a_wrapper_takes_a_pass_whole_or_not_at_all(on: Framework) -> None:
    wrapper = on.module["backend"].unified.make_wrapper(
        {"caches": ({"n": 8}, {"n": 2}), "sequences": 1},
        lambda part: on.causal(sequences=1, capacity=part["n"]),
    )
    large, small = wrapper.of(0), wrapper.of(1)
    wrapper.forward([0, 1], [0, 0])
    for cache in (large, small):
        cache.put(0, *on.feed([0, 1]))
    with pytest.raises(CacheFullError, match="0 of 2 cells are free"):
        wrapper.forward([2], [0])
    assert (large.cells.free, small.cells.free) == (6, 0)
    wrapper.remove(0, 1, None)
    wrapper.forward([1], [0])
    for cache in (large, small):
        cache.put(0, *on.feed([11]))
        assert on.see(cache) == [[0, 11]]
