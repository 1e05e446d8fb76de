"""Masks that are stretches of a line, in both frameworks, say what every pair says."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from lockstep.impl.mlx import memory as on_mlx
from lockstep.impl.torch import memory as on_torch


def compare_all(length: int, rows: int, before: int, window: int | None) -> Any:
    behind = np.arange(rows)[:, None] + before - np.arange(before + length)
    seen = (behind >= 0) & (behind < (window or 1 << 30))
    seen[length:] = False
    return seen


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("window", [None, 1, 3, 10])
@pytest.mark.parametrize(
    ("length", "rows", "before"), [(1, 1, 4), (1, 3, 0), (5, 5, 0), (5, 8, 7), (8, 8, 2)]
)
def test_a_band(
    framework: str, dtype: str, window: int | None, length: int, rows: int, before: int
) -> None:
    if framework == "torch":
        like = torch.empty(0, dtype=getattr(torch, dtype))
        mask = on_torch.make_band(length, rows, before, window, like)
        assert mask.dtype == like.dtype
        content = mask.float().numpy() if dtype != "bool" else mask.numpy()
    else:
        kind = mx.bool_ if dtype == "bool" else getattr(mx, dtype)
        band = on_mlx.make_band(length, rows, before, window, kind)
        assert band.dtype == kind
        content = np.array(band if dtype == "bool" else band.astype(mx.float32))
    seen = compare_all(length, rows, before, window)
    expected = seen if dtype == "bool" else np.where(seen, 0, -np.inf)
    assert np.array_equal(content, expected)


def test_a_band_is_made_whatever_the_default_device() -> None:
    with torch.device("meta"):
        mask = on_torch.make_band(2, 2, 1, None, torch.empty(0, device="cpu"))
    assert mask.tolist() == [[0, 0, -np.inf], [0, 0, 0]]


def test_attention_takes_a_band_as_it_is() -> None:
    """MLX hands out a view, whose rows overlap and go backwards."""
    queries, keys = mx.random.normal((1, 2, 5, 8)), mx.random.normal((1, 2, 9, 8))
    band = on_mlx.make_band(5, 5, 4, 3, mx.bool_)
    plain = mx.array(np.array(band))
    got, wanted = (
        mx.fast.scaled_dot_product_attention(queries, keys, keys, scale=1.0, mask=mask)
        for mask in (band, plain)
    )
    assert mx.array_equal(got, wanted)


def test_a_band_takes_the_memory_of_a_line() -> None:
    mx.synchronize()
    before = mx.get_active_memory()
    band = on_mlx.make_band(512, 512, 1 << 15, None, mx.float32)
    mx.eval(band)
    assert mx.get_active_memory() - before < 1 << 20


@pytest.mark.parametrize("dtype", ["bool", "float16"])
def test_elsewhere_a_band_is_written(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a device that is not the CPU; here the name alone differs."""
    kind = mx.bool_ if dtype == "bool" else mx.float16
    wanted = np.array(on_mlx.make_band(5, 5, 4, 3, kind))
    monkeypatch.setattr(on_mlx, "CPU", mx.Device(mx.gpu))
    assert np.array_equal(np.array(on_mlx.make_band(5, 5, 4, 3, kind)), wanted)
