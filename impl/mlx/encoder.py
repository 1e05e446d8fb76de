"""The cache of an encoded image on MLX. It stores the given arrays without a copy,
because the content of an MLX array never changes."""

from __future__ import annotations

from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.shared.encoder import EncoderCacheBase


class EncoderCache(EncoderCacheBase):
    """K and V of one image in each layer, for cross attention without a mask.

    The arrays that `get` returns keep their content.
    """

    def keep(self, old: Pair | None, pair: Pair) -> Pair:
        return make_compact(pair)

    def hand_out(self, pair: Pair) -> Pair:
        """Returns new array objects with the same content, because the caller may assign
        to slices of them."""
        return pair[0][...], pair[1][...]
