"""Layer caches on torch: gradients, inference mode, copies of a cache."""

from __future__ import annotations

import copy

import pytest
import torch
from frameworks import Framework

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.torch.causal import CausalCache


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("torch")


every_kind = pytest.mark.parametrize("kind", ["kv", "rotating"])


@every_kind
@pytest.mark.parametrize("length", [1, 3])
def test_a_gradient_flows_through_an_update(
    on: Framework, kind: str, length: int
) -> None:
    """To new tokens, and to those that came before."""
    cache = on.layer(kind)
    early, late = on.feed([0]), on.feed(range(1, 1 + length))
    for tokens in (early, late):
        pair = cache.update(*(array.requires_grad_() for array in tokens))
    (pair[0].sum() + 2 * pair[1].sum()).backward()
    for tokens in (early, late):
        assert [token.grad.unique().tolist() for token in tokens] == [[1], [2]]


def test_without_gradients_none_is_recorded(on: Framework) -> None:
    tokens = [array.requires_grad_() for array in on.feed([0])]
    with torch.no_grad():
        keys, _ = on.layer("kv").update(*tokens)
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


def test_a_copy_of_a_cache_writes_to_its_own_memory(on: Framework) -> None:
    cache = on.layer("kv", step=64)
    for number in range(4):
        on.append(cache, [number])
    other = copy.deepcopy(cache)
    on.append(other, [50])
    on.append(cache, [4])
    assert on.hold(cache.view()) == [0, 1, 2, 3, 4]
    assert on.hold(other.view()) == [0, 1, 2, 3, 50]


def test_steps_in_and_out_of_inference_mode(on: Framework) -> None:
    cache = on.layer("kv", step=64)
    for number in range(8):
        with torch.inference_mode(number > 1 and number % 2 == 0):
            on.append(cache, [number])
    assert on.hold(cache.view()) == list(range(8))


def test_a_write_of_a_state_moves_nothing(on: Framework) -> None:
    cache = on.layer("state")
    places = [buffer.data_ptr() for buffer in cache.read()]
    on.append(cache, [8])
    assert [buffer.data_ptr() for buffer in cache.read()] == places
    assert on.hold(cache.read()) == [8]


@every_kind
def test_single_tokens_go_where_they_belong(on: Framework, kind: str) -> None:
    """Their places are prepared ahead: others are needed when the memory moves, or when
    tokens are taken back."""
    cache = on.layer(kind, step=4, **({"window": 300} if kind == "rotating" else {}))
    for number in range(130):
        on.append(cache, [number])
    assert cache.trim(100) == 100
    for number in range(30, 300):
        on.append(cache, [number])
    assert on.hold(cache.view()) == list(range(300))
