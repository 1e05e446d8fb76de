"""The cache of an encoded image on torch."""

from __future__ import annotations

from lockstep.impl.shared.encoder import EncoderCacheBase
from lockstep.impl.torch.memory import Pair, clone


class EncoderCache(EncoderCacheBase):
    """K and V of one image in each layer, for cross attention without a mask.

    `get` returns the stored tensors, which are valid until the next put into the layer.
    """

    def keep(self, old: Pair | None, pair: Pair) -> Pair:
        if old is None:
            return clone(pair)
        old[0].copy_(pair[0])
        old[1].copy_(pair[1])
        return old

    def hand_out(self, pair: Pair) -> Pair:
        return pair
