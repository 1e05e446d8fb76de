"""The cache of cross attention, which stores one encoded image at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from .batch import Batch, check_copy, check_position, check_range
from .errors import NotSupported


class Image(NamedTuple):
    """The output of the encoder for one image, and the position of the image's row."""

    position: int
    tags: tuple[int, ...]


class Removal(NamedTuple):
    """The removal of all positions in [begin, end)."""

    begin: int
    end: float

    def spares(self, image: Image) -> bool:
        return not self.begin <= image.position < self.end


class EncoderCache:
    """A cache for one image, for any number of sequences.

    The cache is a history of stored images and removed ranges. A removal names a sequence
    and a range of positions; the sequence has no effect.

    Args:
        sequences: number of sequences, numbered from 0.
        batch: maximum number of rows of a pass.
    """

    def __init__(self, sequences: int, batch: int) -> None:
        self.sequences, self.batch = sequences, batch
        self.history: list[Image | Removal] = []
        self.current: Batch | None = None

    @property
    def stored(self) -> Image | None:
        """The stored image, or None.

        This is the last image of the history, unless a later removal contains its
        position.
        """
        spared = [
            image
            for age, image in enumerate(self.history)
            if isinstance(image, Image)
            and all(
                isinstance(later, Removal) and later.spares(image)
                for later in self.history[age + 1 :]
            )
        ]
        return spared[0] if spared else None

    @property
    def cached(self) -> bool:
        """Whether an image is stored."""
        return self.stored is not None

    @property
    def image(self) -> int | None:
        """The position of the last row of the open pass that represents an image."""
        if self.current is None:
            return None
        rows = enumerate(self.current.positions)
        images = [at for row, at in rows if row in self.current.multimodal]
        return images[-1] if images else None

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """Opens a pass, which is never refused as full.

        Args:
            batch: the rows, which are not stored. If a row represents an image, `put` may
                follow.
            tags: one tag for each row.
            reserve: True to reserve memory; then no pass is open, and `put` is an invalid
                call.
        """
        batch.check(self.sequences, self.batch)
        self.current = None if reserve else batch

    def close(self) -> None:
        """Ends the pass."""
        self.current = None

    def evict(self, batch: Batch) -> None:
        """Does nothing: an image stays until it is replaced or removed."""

    def list_refusals(self, batch: Batch, reserve: bool) -> list[Exception]:
        """Returns an empty list: there is always room."""
        return []

    def add(self, batch: Batch, tags: Sequence[int]) -> None:
        """Opens the pass."""
        self.current = batch

    def put(self, tags: Sequence[int]) -> None:
        """Stores the image of this pass, and replaces the stored image."""
        if self.image is None:
            raise ValueError("no row of this pass stands for an image")
        self.history.append(Image(self.image, tuple(tags)))

    def get(self) -> list[int] | None:
        """Returns all tags of the stored image, for every row; None without an image."""
        return list(self.stored.tags) if self.stored else None

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        check_copy(source, target, length, self.sequences)
        raise NotSupported("an encoded image belongs to one sequence")

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the positions in [begin, end), or from `begin` on if `end` is None."""
        check_range(sequence, begin, end, self.sequences)
        self.current = None
        self.history.append(Removal(begin, inf if end is None else end))

    def can_resume(self, sequence: int, position: int) -> bool:
        check_position(sequence, position, self.sequences)
        return True

    def save(self) -> Any:
        """Returns the content, for `load`."""
        return list(self.history)

    def load(self, saved: Any) -> None:
        """Replaces the content by the result of `save`."""
        self.close()
        self.history = list(saved)
