"""Rotary position embedding on torch, for keys that move to another position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from lockstep.impl.shared.errors import MisuseError


class Rope:
    """Rotates keys by a number of positions; layer i uses bases[i % len(bases)].

    The pairs of a key are (x[i], x[i + dim / 2]). Pair i is rotated by position ·
    base^(-2i / dim).

    Attributes:
        rates: float64 [layers, dim / 2], angle per position.
    """

    def __init__(
        self, bases: Sequence[float], layers: int, dim: int, device: torch.device
    ) -> None:
        if dim % 2:
            raise MisuseError(f"key_dim must be even to rotate keys, but is {dim}")
        self.rates = compute_rates(tuple(bases), layers, dim).to(device)

    def compute_turn(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and sines of the angles, float32 [layers, dim / 2].

        The angles are float64: a float32 angle of a million has too few digits left after
        reduction modulo 2π.
        """
        angles = self.rates * distance
        return angles.cos().float(), angles.sin().float()

    def turn(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """Rotates keys [layers, 1, heads, tokens, dim] in float32, and returns them in
        their dtype."""
        cos, sin = (angles[:, None, None, None] for angles in self.compute_turn(distance))
        x, y = keys.float().chunk(2, dim=-1)
        return torch.cat((x * cos - y * sin, x * sin + y * cos), dim=-1).to(keys.dtype)


@cache
def compute_rates(bases: tuple[float, ...], layers: int, dim: int) -> torch.Tensor:
    """Returns a cached tensor, which must not be written to."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / -dim
    rows = [float(bases[layer % len(bases)]) ** exponents for layer in range(layers)]
    return torch.stack(rows)
