"""The entries of pooled caches, as they are read, and configs that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lockstep.harness.contracts.layer.pooled import PooledReader
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import UNIT, get_table
from lockstep.harness.execution.executor import run
from lockstep.impl.torch.backend import cpu
from lockstep.reference.pooled import PooledCache
from tests.harness.building import make, trim, update
from tests.harness.changing import change_caches

TORCH = cpu()
CONFIG = make(update(1), kind="pooled", pool=2, overlap=1, heads=2, key_dim=6).config


def compute_means(role: Any, dim: int, windows: Sequence[list[int]]) -> Any:
    vectors = get_table(0, role, 2, dim, 64).vectors
    means = [vectors[:, :, window].mean(2, keepdims=True) for window in windows]
    return np.concatenate([vectors[:, :, :0], *means], 2)


def read(off: float, *windows: list[int]) -> list[Any]:
    """Reads the means of windows, with an error in K, where a cache has read the tokens 0
    to 6: its entries are 1, 3 and 5."""
    reader, reference = PooledReader(TORCH, CONFIG, 64), PooledCache(2, 1)
    reference.update(range(7))
    numbers = compute_means("key", 6, windows) + off, compute_means("value", 4, windows)
    arrays = [TORCH.arrays.from_numpy(array, "float32") for array in numbers]
    return reader.read(tuple(arrays), "update", reader.expect(reference))


def test_entries_are_named_by_their_last_tokens() -> None:
    assert read(0, [0, 1], [1, 2, 3], [3, 4, 5]) == [1, 3, 5]
    assert read(0, [3, 4, 5], [0, 1]) == [5, 1]
    assert read(0) == []


def test_other_means_are_described() -> None:
    expected = [1, "the mean of tokens 2, 3", "the mean of token 4"]
    assert read(0, [0, 1], [2, 3], [4]) == expected
    assert read(0, [0, 2], [1, 2, 3]) == ["an unknown entry", 3]
    assert read(np.nan, [0, 1]) == ["NaN"]
    assert read(np.inf, [0, 1]) == ["an unknown entry"]


def test_an_entry_may_be_rounded_once() -> None:
    assert read(UNIT["float32"], [0, 1], [1, 2, 3]) == [1, 3]
    assert read(1e-4, [0, 1], [1, 2, 3]) == ["an unknown entry", "an unknown entry"]


@pytest.mark.parametrize("dtype", UNIT)
def test_a_mean_of_half_the_tokens_is_found_in_every_dtype(dtype: str) -> None:
    """The cache pools the latter token of each window only."""

    def forget(cache: Any) -> None:
        combine = cache.combine
        cache.combine = lambda *pair: combine(*(array[..., 1:, :] for array in pair))

    backend = change_caches(TORCH, forget, "pooled")
    program = make(update(2), kind="pooled", pool=2, dtype=dtype)
    divergence = run(program, backend).divergence
    assert divergence is not None
    assert "the mean of token 1" in divergence.message
    assert run(program, TORCH).divergence is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"kind": "pooled"}, "needs a pool"),
        ({"kind": "kv", "pool": 2}, "fields of pooled caches only"),
        ({"kind": "state", "lookahead": 1}, "fields of pooled caches only"),
        ({"kind": "pooled", "pool": 2, "overlap": 3}, "overlap is 3, pool 2"),
        ({"kind": "pooled", "pool": 2, "window": 2}, "fields of rotating caches only"),
        (
            {"kind": "pooled", "pool": 2, "special_numbers": True},
            "do not keep them",
        ),
    ],
)
def test_configs_that_do_not_fit(config: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make(update(1), **config)


def test_a_refused_trim_changes_nothing_and_an_allowed_one_opens_a_window() -> None:
    ops = [update(5), trim(2), trim(1), update(2), trim(9), update(1)]
    program = make(*ops, kind="pooled", pool=2, lookahead=2)
    result = run(program, TORCH, every=True)
    assert result.divergence is None
    assert result.steps == len(ops)
