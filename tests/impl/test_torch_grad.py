"""Layer caches on torch where a gradient is wanted: it flows through what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.kv import KVCache
from lockstep.impl.torch.rotating import RotatingCache

Feed = Callable[..., tuple[Any, Any]]


@pytest.mark.parametrize("make", [KVCache, lambda: RotatingCache(4)])
@pytest.mark.parametrize("length", [1, 3])
def test_a_gradient_flows_through_an_update(
    feed: Feed, make: Callable[[], Any], length: int
) -> None:
    cache = make()
    cache.update(*feed(0, 2))
    tokens = [array.requires_grad_() for array in feed(2, length)]
    keys, values = cache.update(*tokens)
    (keys.sum() + 2 * values.sum()).backward()
    assert [token.grad.unique().tolist() for token in tokens] == [[1], [2]]


@pytest.mark.parametrize("make", [KVCache, lambda: RotatingCache(4)])
def test_a_gradient_flows_to_tokens_that_came_before(
    feed: Feed, make: Callable[[], Any]
) -> None:
    cache = make()
    early = [array.requires_grad_() for array in feed(0)]
    cache.update(*early)
    keys, values = cache.update(*feed(1))
    (keys.sum() + 2 * values.sum()).backward()
    assert [token.grad.unique().tolist() for token in early] == [[1], [2]]


def test_without_gradients_none_is_recorded(feed: Feed) -> None:
    cache = KVCache()
    tokens = [array.requires_grad_() for array in feed(0)]
    with torch.no_grad():
        keys, _ = cache.update(*tokens)
    assert not keys.requires_grad


def test_keys_that_carry_a_gradient_can_be_turned() -> None:
    """More of them than are turned at a time."""
    cache = CausalCache(Sizes(1, 4096, 4096))
    keys = torch.randn(1, 1, 3000, 4, requires_grad=True)
    cache.forward(range(3000), [0] * 3000)
    cache.put(0, keys, keys)
    cache.remove(0, 10, 20)
    cache.forward([2990], [0])
    cache.put(0, keys[:, :, :1], keys[:, :, :1])
    cache.get(0)[0].sum().backward()
    assert keys.grad is not None and keys.grad.abs().sum() > 0
