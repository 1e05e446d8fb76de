"""Tokens as tensors that are easy to read, for the tests of our own caches."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [
    f"test_{name}_*.py" for name in ("torch", "mlx") if find_spec(name) is None
]


@pytest.fixture
def feed() -> Callable[..., tuple[Any, Any]]:
    """feed(first, count): K [1, 2, count, 4], token n full of n, and V [1, 2, count, 3]
    full of -n."""
    import torch

    def feed(first: int, count: int = 1, heads: int = 2) -> tuple[Any, Any]:
        numbers = torch.arange(first, first + count, dtype=torch.float32)
        tokens = numbers.view(1, 1, count, 1)
        keys, values = (
            tokens.expand(1, heads, count, 4),
            tokens.expand(1, heads, count, 3),
        )
        return keys.clone(), -values

    return feed


@pytest.fixture
def see() -> Callable[[Any], list[int]]:
    """The numbers of the tokens in a (K, V), after both were looked at as a whole."""

    def see(pair: Any) -> list[int]:
        if pair is None:
            return []
        keys, values = pair
        numbers: list[int] = keys[0, 0, :, 0].int().tolist()
        assert (keys == keys[:, :1, :, :1]).all()
        assert (values == -keys[:, :1, :, :1]).all()
        return numbers

    return see
