"""Batches on torch: gradients, inference mode, what is sent to the device."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from batches import BOTH, append, decode, fill
from frameworks import Framework

from lockstep.impl.torch import batched
from lockstep.impl.torch.pool import ALIGNMENT, clear


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("torch")


@BOTH
@pytest.mark.parametrize("lengths", [[2, 2], [1, 2]])
@pytest.mark.parametrize("length", [1, 3])
def test_a_gradient_flows_through_an_update(
    on: Framework, window: int | None, lengths: list[int], length: int
) -> None:
    """To new tokens, and to those that came before."""
    batch = on.batch(2, window, step=2)
    early, late = on.feed_rows([[1, 2], [3, 4]]), on.feed_rows([[5] * length] * 2)
    for tokens in (early, late):
        for array in tokens:
            array.requires_grad_()
    batch.pad_right(lengths)
    batch.update(*early)
    batch.finalize()
    keys, values = batch.update(*late)
    (keys.sum() + 2 * values.sum()).backward()
    seen = early[0].grad[:, 0, :, 0].tolist()
    assert seen == [[1, 0], [1, 1]] if lengths == [1, 2] else [[1, 1], [1, 1]]
    assert [token.grad.unique().tolist() for token in late] == [[1], [2]]


def test_without_gradients_none_is_recorded(on: Framework) -> None:
    for lengths in ([2, 2], [1, 2]):
        batch = fill(on, lengths, None)
        tokens = [array.requires_grad_() for array in on.feed_rows([[8], [9]])]
        with torch.no_grad():
            keys, _ = batch.update(*tokens)
        assert not keys.requires_grad


@BOTH
def test_steps_in_and_out_of_inference_mode(on: Framework, window: int | None) -> None:
    batch = fill(on, [2, 1], window, step=64)
    for number in range(8):
        with torch.inference_mode(number % 2 == 0):
            append(on, batch)


@BOTH
@pytest.mark.parametrize("lengths", [[2, 2], [1, 2]])
def test_a_step_sends_nothing_to_the_device(
    on: Framework, window: int | None, lengths: list[int]
) -> None:
    """The lengths are there, and are counted there."""
    batch = fill(on, lengths, window, step=64)
    append(on, batch, 3)
    with patch.object(batched, "upload", side_effect=AssertionError("sent")):
        decode(on, batch, 9)
        append(on, batch, 3)
        decode(on, batch, 2)


def test_positions_that_were_handed_out_stay(on: Framework) -> None:
    batch = fill(on, [2, 1], None)
    held = batch.get_positions(1)
    decode(on, batch, 3)
    assert held.tolist() == [[2], [1]]
    batch.get_positions(1).fill_(-7)
    assert batch.get_positions(1).tolist() == [[5], [4]]


def test_memory_that_nobody_wrote_is_finite(on: Framework) -> None:
    """It is multiplied by 0 in attention."""

    def fill_with_nan(self: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        return self.new_full(*shape, torch.nan, **options)

    with patch.object(torch.Tensor, "new_empty", fill_with_nan):
        batch = on.batch(3, step=4)
        batch.pad_left([0, 2, 3])
        for length in (4, 1, 3, 1, 6):
            assert all(array.isfinite().all() for array in append(on, batch, length))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (2, 1, 4, 0)])
def test_memory_of_a_pool_is_cleared(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    array = clear(shape, dtype)
    assert (tuple(array.shape), array.dtype) == (shape, dtype)
    assert array.data_ptr() % ALIGNMENT == 0
    assert array.is_contiguous() and not array.any()
