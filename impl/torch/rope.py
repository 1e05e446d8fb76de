"""Rotary position embedding on torch, for keys that move to another position."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Rope:
    """Turns keys by a number of positions; the layers take the bases in turn.

    A key's pairs are (x[i], x[i + dim / 2]); pair i turns by position · base^(-2i / dim).
    """

    def __init__(
        self, bases: Sequence[float], layers: int, dim: int, device: torch.device
    ) -> None:
        if dim % 2:
            raise ValueError(f"a key of {dim} numbers has no pairs to turn")
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / -dim
        rows = [float(bases[layer % len(bases)]) ** exponents for layer in range(layers)]
        # [layers, 1, 1, 1, dim / 2]
        self.rates = torch.stack(rows).to(device)[:, None, None, None]

    def turn(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """keys: [layers, 1, heads, tokens, dim]; computed in float32, in their dtype."""
        angles = self.rates * distance
        cos, sin = angles.cos().float(), angles.sin().float()
        x, y = keys.float().chunk(2, dim=-1)
        return torch.cat((x * cos - y * sin, x * sin + y * cos), dim=-1).to(keys.dtype)
