"""The cache of an encoded image on torch."""

from __future__ import annotations

import torch

from lockstep.impl.shared.encoder import EncoderCacheBase
from lockstep.impl.shared.errors import MisuseError

Pair = tuple[torch.Tensor, torch.Tensor]


class EncoderCache(EncoderCacheBase):
    """K and V of one image in each layer, for cross attention without a mask.

    `get` returns the stored tensors: they are valid until the next put into the layer.
    """

    def __init__(self, sequences: int, batch: int) -> None:
        super().__init__(sequences, batch)
        self.stored: dict[int, Pair] = {}

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
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
        if not self.accept():
            return
        if old is None:
            self.stored[layer] = keys.clone(), values.clone()
            return
        old[0].copy_(keys)
        old[1].copy_(values)

    def get(self, layer: int) -> Pair | None:
        """Returns K and V as they were put; None if nothing is cached."""
        self.check_open()
        return self.stored.get(layer) if self.cached else None
