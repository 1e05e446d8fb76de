"""The cache of an encoded image, without its arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.impl.shared.batch import PassRows, check_copy, check_position, check_range
from lockstep.impl.shared.errors import MisuseError, NotSupportedError
from lockstep.impl.shared.memory import Arrays


class SavedImage(NamedTuple):
    """K and V of the image by layer, whether it is cached, and its position."""

    stored: Mapping[int, Arrays]
    cached: bool
    position: int


class EncoderCacheBase:
    """One slot in each layer for the encoder's output for one image.

    Args:
        sequences: number of sequences, numbered from 0.
        batch: maximum number of rows of a pass.
    """

    def __init__(self, sequences: int, batch: int) -> None:
        self.sequences, self.batch = sequences, batch
        self.stored: dict[int, Arrays] = {}
        self.cached = False
        self.position = 0
        self.image: int | None = None
        self.is_open = self.is_reserving = False

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int] = (),
        multimodal: Sequence[int] = (),
        reserve: bool = False,
    ) -> None:
        """Opens a pass. K and V may be put if a row represents an image."""
        batch = self.make_batch(positions, sequences, exceptions, multimodal, ())
        self.close()
        if reserve:
            self.reserve(batch)
        else:
            self.add(batch)

    def make_batch(self, *rows: Sequence[Any]) -> PassRows:
        positions, sequences, exceptions, multimodal, coordinates = rows
        if len(coordinates):
            raise MisuseError("a cache of an encoder has positions of one axis")
        count, most = self.sequences, self.batch
        return PassRows(positions, sequences, exceptions, multimodal, count, most)

    def close(self) -> None:
        self.image, self.is_open, self.is_reserving = None, False, False

    def reserve(self, batch: PassRows) -> None:
        self.is_open = self.is_reserving = True

    def evict(self, batch: PassRows) -> None:
        """Does nothing: an image is not evicted."""

    def check_rows(self, batch: PassRows) -> None:
        """Does nothing: every combination of rows is allowed."""

    def refuse(self, batch: PassRows) -> None:
        """Does nothing: the cache is never full."""

    def add(self, batch: PassRows) -> None:
        self.is_open = True
        if len(batch.images):
            self.image = int(batch.positions[batch.images.max()])

    @abstractmethod
    def keep(self, old: Arrays | None, pair: Arrays) -> Arrays:
        """Returns a copy of K and V; it may reuse the arrays of the previous `put`."""

    @abstractmethod
    def hand_out(self, pair: Arrays) -> Arrays:
        """Converts the stored K and V to arrays for the caller."""

    def put(self, layer: int, keys: Any, values: Any) -> None:
        """Stores the encoder's K and V of the image of this pass, unchanged.

        The first put into a layer fixes the shapes.

        Raises:
            MisuseError: the shapes differ from those of the first put, or the pass has no
                image.
        """
        self.check_open()
        self.check_shapes(layer, keys, values)
        if self.accept():
            self.stored[layer] = self.keep(self.stored.get(layer), (keys, values))

    def check_shapes(self, layer: int, keys: Any, values: Any) -> None:
        old = self.stored.get(layer)
        if old is not None and (old[0].shape, old[1].shape) != (keys.shape, values.shape):
            raise MisuseError(
                f"K has shape {list(keys.shape)} and V {list(values.shape)}, but must"
                f" have {list(old[0].shape)} and {list(old[1].shape)}, as in the first"
                f" put into layer {layer}"
            )

    def get(self, layer: int) -> Arrays | None:
        """Returns the last K and V that were put; None if nothing is cached."""
        self.check_open()
        pair = self.stored.get(layer) if self.cached else None
        return pair and self.hand_out(pair)

    def accept(self) -> bool:
        """Records the position of the image.

        Returns:
            Whether a put in this pass stores K and V.

        Raises:
            MisuseError: no row of the pass represents an image.
        """
        if self.is_reserving:
            return False
        if self.image is None:
            raise MisuseError(
                "put: no row of the open pass is an image; name the row in"
                " `multimodal` of forward"
            )
        self.position, self.cached = self.image, True
        return True

    def held(self) -> dict[str, int]:
        """Counts the bytes of the stored arrays."""
        arrays = [array for pair in self.stored.values() for array in pair]
        return {"bytes": sum(array.nbytes for array in arrays)}

    def save(self) -> SavedImage:
        """Returns a copy of the image."""
        stored = {layer: self.keep(None, pair) for layer, pair in self.stored.items()}
        return SavedImage(stored, self.cached, self.position)

    def check_load(self, saved: SavedImage) -> None:
        """Raises MisuseError if the saved image has other shapes than the first put."""
        for layer, pair in saved.stored.items():
            self.check_shapes(layer, *pair)

    def load(self, saved: SavedImage) -> None:
        """Replaces the image by the result of `save`."""
        self.check_load(saved)
        self.close()
        self.cached, self.position = saved.cached, saved.position
        for layer, pair in saved.stored.items():
            self.stored[layer] = self.keep(None, pair)

    def check_open(self) -> None:
        if not self.is_open:
            raise MisuseError("no pass is open; forward opens one")

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        check_copy(source, target, length, self.sequences)
        raise NotSupportedError(
            "copy_prefix: an encoded image cannot belong to two sequences"
        )

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the image if its position is in [begin, end)."""
        check_range(sequence, begin, end, self.sequences)
        self.close()
        if begin <= self.position and (end is None or self.position < end):
            self.cached = False

    def can_resume(self, sequence: int, position: int) -> bool:
        check_position(sequence, position, self.sequences)
        return True
