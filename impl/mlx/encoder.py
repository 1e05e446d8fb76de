"""The cache of an encoded image on MLX; it stores the arrays, because they are values."""

from __future__ import annotations

from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.shared.encoder import EncoderCacheBase


class EncoderCache(EncoderCacheBase):
    """K and V of one image in each layer, for cross attention without a mask.

    `get` returns values, which stay valid.
    """

    def keep(self, old: Pair | None, pair: Pair) -> Pair:
        return make_compact(pair)

    def hand_out(self, pair: Pair) -> Pair:
        """Returns new objects for the same values, because the caller may assign to
        slices."""
        return pair[0][...], pair[1][...]
