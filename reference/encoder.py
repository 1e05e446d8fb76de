"""Cross attention: the encoded image that the text attends to, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from .batch import Batch, check_copy, check_position, check_range
from .errors import NotSupported


class EncoderCache:
    """One place for what an encoder made of an image; the latest replaces the one before.

    There is one place, however many sequences there are, and it is known by its position
    alone: a removal around that position empties it, whichever sequence it names.

    sequences, batch: as in `reference.causal`.
    """

    def __init__(self, sequences: int, batch: int) -> None:
        self.sequences, self.batch = sequences, batch
        self.tags: list[int] | None = None
        self.position = 0
        self.image: int | None = None

    @property
    def cached(self) -> bool:
        """Whether something is stored."""
        return self.tags is not None

    def forward(self, batch: Batch, tags: Sequence[int], reserve: bool = False) -> None:
        """Opens a pass: `put` may store an image if a row stands for one. It never finds
        the cache full. reserve: a put in this pass changes nothing."""
        batch.check(self.sequences, self.batch)
        self.close()
        if not reserve:
            self.evict(batch)
            self.refuse(batch)
            self.add(batch, tags)

    def close(self) -> None:
        """Ends the pass: nothing more is put in it."""
        self.image = None

    def evict(self, batch: Batch) -> None:
        """Nothing leaves on its own."""

    def refuse(self, batch: Batch) -> None:
        """There is always room."""

    def add(self, batch: Batch, tags: Sequence[int]) -> None:
        """The rows themselves are not stored; where the last image stands is."""
        if batch.multimodal:
            self.image = batch.positions[max(batch.multimodal)]

    def put(self, tags: Sequence[int]) -> None:
        """Stores what the encoder made of the image of this pass."""
        if self.image is None:
            raise ValueError("no row of this pass stands for an image")
        self.tags, self.position = list(tags), self.image

    def get(self) -> list[int] | None:
        """All of what is stored, for every row; None if nothing is."""
        return self.tags

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        check_copy(source, target, length, self.sequences)
        raise NotSupported("an encoded image belongs to one sequence")

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """What stands in [begin, end) is no longer there. end: None for no end."""
        check_range(sequence, begin, end, self.sequences)
        self.close()
        if begin <= self.position and (end is None or self.position < end):
            self.tags = None

    def can_resume(self, sequence: int, position: int) -> bool:
        check_position(sequence, position, self.sequences)
        return True
