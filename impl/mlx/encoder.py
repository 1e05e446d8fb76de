"""The cache of an encoded image on MLX: it stores the arrays, since they are values."""

from __future__ import annotations

import mlx.core as mx

from lockstep.impl.mlx.memory import Pair, make_compact
from lockstep.impl.shared.encoder import EncoderCacheBase
from lockstep.impl.shared.errors import MisuseError


class EncoderCache(EncoderCacheBase):
    """K and V of one image in each layer, for cross attention without a mask.

    `get` returns values: they stay valid.
    """

    def __init__(self, sequences: int, batch: int) -> None:
        super().__init__(sequences, batch)
        self.stored: dict[int, Pair] = {}

    def put(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Stores the encoder's K and V of the image of this pass, unchanged.

        The first put into a layer fixes the shapes.

        Raises:
            MisuseError: the shapes differ from those of the first put, or the pass has no
                image.
        """
        self.check_open()
        old = self.stored.get(layer)
        if old is not None and (old[0].shape, old[1].shape) != (keys.shape, values.shape):
            raise MisuseError(
                f"K {list(keys.shape)} and V {list(values.shape)}; the first put into"
                f" layer {layer} had {list(old[0].shape)} and {list(old[1].shape)}"
            )
        if self.accept():
            self.stored[layer] = make_compact((keys, values))

    def get(self, layer: int) -> Pair | None:
        """Returns K and V as they were put; None if nothing is cached."""
        self.check_open()
        pair = self.stored.get(layer) if self.cached else None
        # New objects for the same values: the caller may assign to slices of them.
        return pair and (pair[0][...], pair[1][...])
