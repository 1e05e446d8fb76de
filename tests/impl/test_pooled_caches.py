"""Compressed entries: what no program shows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from frameworks import INSTALLED, Framework

from lockstep.impl.shared.errors import MisuseError


@pytest.fixture(params=INSTALLED)
def framework(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


def make_pooled(framework: Framework, *sizes: int, **options: Any) -> Any:
    module = import_module(f"lockstep.impl.{framework.name}.pooled")
    return module.PooledCache(*sizes, **options)


def draw(framework: Framework, length: int) -> tuple[Any, Any]:
    shape = (1, 2, length, 3)
    numbers = np.random.default_rng(length).normal(size=(2, *shape))
    return framework.array(numbers[0]), framework.array(numbers[1])


@pytest.mark.parametrize("sizes", [(0,), (2, 3), (2, -1), (2, 0, -1)])
def test_sizes_that_fit_no_window(framework: Framework, sizes: tuple[int, ...]) -> None:
    with pytest.raises(MisuseError, match=r"pool|overlap|lookahead"):
        make_pooled(framework, *sizes)


@pytest.mark.parametrize("lengths", [(11,), (1,) * 11, (3, 5, 3), (4, 4, 3)])
def test_entries_of_another_function(
    framework: Framework, lengths: tuple[int, ...]
) -> None:
    """K is projected tokens, V their gates, as in DeepSeek V4; each window is combined
    once, the first without an overlap."""
    widths = []

    def combine(keys: Any, gates: Any) -> tuple[Any, Any]:
        weights = np.exp(framework.numpy(gates))
        widths.append(weights.shape[2:4])
        weights = weights / weights.sum(3, keepdims=True)
        entries = framework.array((framework.numpy(keys) * weights).sum(3))
        return entries, entries

    cache = make_pooled(framework, 4, 2, combine=combine)
    keys, gates = draw(framework, 11)
    begin = 0
    for length in lengths:
        piece = slice(begin, begin + length)
        entries, same = cache.update(keys[:, :, piece], gates[:, :, piece])
        begin += length
    whole, weights = framework.numpy(keys), np.exp(framework.numpy(gates))
    for at, (first, end) in enumerate([(0, 4), (2, 8)]):
        window = slice(first, end)
        share = weights[:, :, window] / weights[:, :, window].sum(2, keepdims=True)
        expected = (whole[:, :, window] * share).sum(2)
        np.testing.assert_allclose(framework.numpy(entries)[:, :, at], expected, 1e-5)
    assert framework.numpy(same).shape[2] == 2
    assert widths == [(1, 4), (1, 6)]


def test_a_prompt_leaves_its_last_tokens_only(framework: Framework) -> None:
    cache = make_pooled(framework, 4, 4, 3, step=1)
    cache.update(*draw(framework, 1001))
    token = 2 * 2 * 3 * 4  # K and V of two heads, three dimensions, four bytes
    assert cache.held()["bytes"] <= (250 + 4 + 4 + 3) * token
    assert cache.trim(1) == 1
    assert cache.size() == 250


def test_a_closed_snapshot_is_refused(framework: Framework) -> None:
    cache = make_pooled(framework, 2)
    cache.update(*draw(framework, 5))
    snapshot = cache.snapshot(0)
    assert cache.held()["snapshots"] == 1
    cache.close(snapshot)
    assert cache.held()["snapshots"] == 0
    with pytest.raises(MisuseError, match="has been closed"):
        cache.close(snapshot)
    with pytest.raises(MisuseError, match="has been closed"):
        cache.restore(snapshot, 5)
    assert cache.size() == 2
