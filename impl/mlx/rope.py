"""Rotary position embedding on MLX, for keys that move to another position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.errors import MisuseError


class Rope:
    """Rotates keys by a number of positions; layer i uses bases[i % len(bases)].

    The pairs of a key are (x[i], x[i + dim / 2]); pair i is rotated by position ·
    base^(-2i / dim).
    """

    def __init__(self, bases: Sequence[float], layers: int, dim: int) -> None:
        if dim % 2:
            raise MisuseError(f"key_dim must be even to rotate keys, but is {dim}")
        self.rates = compute_rates(tuple(bases), layers, dim)

    def turn(self, keys: mx.array, distance: int) -> mx.array:
        """Rotates keys [layers, 1, heads, tokens, dim] in float32, and returns them in
        their dtype.

        numpy computes the angles, because MLX has float64 only on the CPU.
        """
        angles = self.rates * distance
        cos, sin = np.cos(angles), np.sin(angles)
        along = mx.array(cos.astype(np.float32))
        across = mx.array(np.concatenate((-sin, sin), axis=-2).astype(np.float32))
        halves = (*keys.shape[:-1], 2, keys.shape[-1] // 2)
        pairs = keys.astype(mx.float32).reshape(halves)
        turned = pairs * along + pairs[..., ::-1, :] * across
        return turned.reshape(keys.shape).astype(keys.dtype)


@cache
def compute_rates(
    bases: tuple[float, ...], layers: int, dim: int
) -> npt.NDArray[np.float64]:
    """Returns a cached array [layers, 1, 1, 1, 1, dim / 2]. Do not write to it."""
    exponents = np.arange(0, dim, 2) / -dim
    rows = [float(bases[layer % len(bases)]) ** exponents for layer in range(layers)]
    return np.stack(rows)[:, None, None, None, None]
