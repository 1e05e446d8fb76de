"""The unified caches on torch: one pool that stays in place, handed out as views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frameworks import Framework

from lockstep.impl.torch.kernels import plain


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("torch")


def get_places(cache: Any) -> tuple[int, int]:
    return cache.keys.data_ptr(), cache.values.data_ptr()


def make_holes(on: Framework, **options: Any) -> Any:
    """Every second of the first six cells is free."""
    cache = on.causal(**options)
    on.step(cache, [0, 0, 1, 1, 2, 2], [0, 1] * 3, [0, 50, 1, 51, 2, 52])
    cache.remove(1, 0, None)
    return cache


def test_get_returns_views_of_a_pool_that_never_moves(on: Framework) -> None:
    cache = make_holes(on, layers=2)
    places = get_places(cache)
    for position in range(3, 12):
        on.step(cache, [position])
        keys, values, _ = cache.get(0)
        assert (keys.data_ptr(), values.data_ptr()) == places
        assert cache.get(1)[0].data_ptr() == cache.keys[1].data_ptr()
    cache.remove(0, 2, 4)
    cache.load(cache.save())
    assert get_places(cache) == places


def test_columns_start_where_the_window_does(on: Framework) -> None:
    cache = on.causal(window=1)
    for position in range(5):
        on.step(cache, [position])
    keys, _, mask = cache.get(0)
    assert mask.shape == (1, 2)
    assert keys.data_ptr() == cache.keys[0][:, :, 3].data_ptr()


def test_an_image_stays_in_place(on: Framework) -> None:
    cache, pointers = on.encoder(), set()
    for position in range(2):
        cache.forward([position], [0], multimodal=[0])
        cache.put(0, *on.feed([5 + position]))
        pointers.add(cache.get(0)[0].data_ptr())
    assert len(pointers) == 1


def test_a_checkpoint_is_compact(on: Framework) -> None:
    """Not a view of the states of the whole batch."""
    cache = on.recurrent(interval=1)
    on.step(cache, [0, 0, 0], [0, 1, 2])
    conv, delta = on.states(5, 6, 7)
    cache.write_states(0, conv, delta)
    stored = cache.pending[1].arrays[0]
    for array, whole in zip(stored, (conv, delta), strict=True):
        assert (array == 6).all()
        assert array.untyped_storage().nbytes() == whole.nbytes // 3


def test_one_mask_serves_all_layers(on: Framework) -> None:
    cache = on.causal(layers=2)
    on.step(cache, [0, 1])
    assert cache.get(0)[2] is cache.get(1)[2]
    mask = cache.get(0)[2]
    on.step(cache, [2])
    assert cache.get(0)[2] is not mask


def test_a_mask_made_in_inference_mode_hinders_none_outside(on: Framework) -> None:
    cache = on.causal()
    cache.forward([0, 1], [0, 0])
    cache.put(0, *on.feed([0, 1]))
    with torch.inference_mode():
        cache.get(0)
    cache.remove(0, 0, None)
    assert on.step(cache, [0, 1]) == [[0], [0, 1]]


def test_a_mask_is_written_over_the_one_before(on: Framework) -> None:
    """In memory that a larger one left, whatever it held."""
    cache = on.causal(mask_padding=2)
    on.step(cache, range(8))
    place = cache.get(0)[2].data_ptr()
    for sequence in (1, 2):
        cache.get(0)[2].zero_()
        assert on.step(cache, [0], sequence) == [[0], []]
        assert cache.get(0)[2].data_ptr() == place
    assert on.step(cache, [1, 2, 3], 1) == [[0, 1], [0, 1, 2], [0, 1, 2, 3], []]
    assert cache.get(0)[2].data_ptr() == place


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [4, 6, 8])
@pytest.mark.parametrize("form", ["whole", "aside", "swapped", "other dtype"])
def test_tokens_of_any_form_go_to_cells_that_are_not_adjacent(
    dtype: torch.dtype, dim: int, form: str
) -> None:
    pool = torch.zeros(1, 2, 9, dim, dtype=dtype)
    tokens = torch.arange(2 * 3 * dim + 1).to(dtype)
    if form == "aside":  # begins within 16 bytes
        tokens = tokens[1:].view(1, 2, 3, dim)
    elif form == "swapped":
        tokens = tokens[:-1].view(1, dim, 3, 2).transpose(1, 3)
    else:
        tokens = tokens[:-1].view(1, 2, 3, dim)
    if form == "other dtype":
        tokens = tokens.to(torch.bfloat16)
    plain.write(pool, tokens, torch.tensor([7, 0, 4]), plain.ROWS)
    assert (pool[:, :, [7, 0, 4]] == tokens).all()
    assert (pool[:, :, [1, 2, 3, 5, 6, 8]] == 0).all()


def test_only_whole_numbers_are_widened() -> None:
    wide = torch.zeros(1, 2, 9, 8, dtype=torch.float16)
    assert plain.can_widen(wide)
    for array in (
        wide[..., 1:5],
        wide[..., :4],
        wide[..., :1].expand(1, 2, 9, 8),
        torch.zeros(73, dtype=torch.float16)[1:].view(9, 8),
        wide.clone().requires_grad_(),
    ):
        assert not plain.can_widen(array)


def test_the_mask_of_a_reserved_pass_is_not_kept(on: Framework) -> None:
    cache = on.causal()
    on.step(cache, [0])
    cache.forward(range(8), [0] * 8, reserve=True)
    reserved = cache.get(0)[2].numel()
    on.step(cache, [1])
    assert cache.get(0)[2].untyped_storage().nbytes() < 4 * reserved


def test_tokens_with_gradients_follow_a_fresh_cache_that_was_loaded(
    on: Framework,
) -> None:
    cache, other = on.causal(), on.causal()
    with torch.enable_grad():
        cache.forward([0, 0], [0, 1])
        cache.put(0, *(array.requires_grad_() for array in on.feed([0, 1])))
        other.load(cache.save())
        other.remove(0, 0, None)
        other.forward([1, 2], [1, 1])  # in cells that are not adjacent
        other.put(0, *(array.requires_grad_() for array in on.feed([2, 3])))
    assert on.see(other) == [[1, 2], [1, 2, 3]]


def test_tokens_with_gradients_follow_one_that_nobody_has_read(on: Framework) -> None:
    """The cells of the last pass are not adjacent; the one between them was written."""
    cache = on.causal()
    with torch.enable_grad():
        cache.forward([0], [0])
        cache.forward([0], [1])
        cache.put(0, *(array.requires_grad_() for array in on.feed([0])))
        cache.remove(0, 0, None)
        cache.forward([1, 2], [1, 1])
        cache.put(0, *(array.requires_grad_() for array in on.feed([1, 2])))
    assert on.see(cache) == [[0, 1], [0, 1, 2]]
