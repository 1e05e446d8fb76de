"""Mistakes in the reference of encoders, wrappers and slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lockstep.reference.batch import Batch
from lockstep.reference.encoder import EncoderCache, Image, Removal
from lockstep.reference.slots import REFUSALS, Slot, Slots
from lockstep.reference.wrapper import WrapperCache

Replace = Callable[[Any, str, Any], None]


def image_of_the_first_row(replace: Replace) -> None:
    def image(self: EncoderCache) -> int | None:
        rows = self.current.multimodal if self.current else ()
        return self.current.positions[min(rows)] if self.current and rows else None

    replace(EncoderCache, "image", property(image))


def image_survives_its_own_place(replace: Replace) -> None:
    def spares(self: Removal, image: Image) -> bool:
        return not self.begin < image.position < self.end

    replace(Removal, "spares", spares)


def image_belongs_to_a_sequence(replace: Replace) -> None:
    """Only sequence 0 can remove it."""
    remove = EncoderCache.remove

    def wrong(self: EncoderCache, sequence: int, begin: int, end: int | None) -> None:
        if sequence == 0:
            remove(self, sequence, begin, end)

    replace(EncoderCache, "remove", wrong)


def one_refuses_the_others_keep(replace: Replace) -> None:
    """Of a wrapper only the first cache is asked whether there is room."""

    def forward(
        self: WrapperCache, batch: Batch, tags: Sequence[int], reserve: bool = False
    ) -> None:
        batch.check(self.caches[0].sequences, self.caches[0].batch)
        self.close()
        if not reserve:
            for cache in self.caches:
                cache.forward(batch, tags)

    replace(WrapperCache, "forward", forward)


def the_last_cache_is_not_cut(replace: Replace) -> None:
    remove = WrapperCache.remove

    def wrong(self: WrapperCache, sequence: int, begin: int, end: int | None) -> None:
        last = self.caches.pop()
        remove(self, sequence, begin, end)
        self.caches.append(last)

    replace(WrapperCache, "remove", wrong)


def the_last_cache_decides(replace: Replace) -> None:
    def can_resume(self: WrapperCache, sequence: int, position: int) -> bool:
        return self.caches[-1].can_resume(sequence, position)

    replace(WrapperCache, "can_resume", can_resume)


def forks_are_short(replace: Replace) -> None:
    """One token fewer is copied than the slot then says that it holds."""
    copy = Slots.copy

    def wrong(self: Slots, source: int, target: int, length: int) -> bool:
        copied = copy(self, source, target, length)
        with suppress(*REFUSALS):
            self.cache.remove(target, length - 1, None)
        return copied

    replace(Slots, "copy", wrong)


def newest_slot_is_taken(replace: Replace) -> None:
    rank = Slots.rank

    def wrong(self: Slots, slot: Slot, tokens: Sequence[int]) -> tuple[bool, int, int]:
        parts, age, number = rank(self, slot, tokens)
        return parts, -age if self.several_users else age, number

    replace(Slots, "rank", wrong)


def the_first_free_slot_is_taken(replace: Replace) -> None:
    rank = Slots.rank

    def wrong(self: Slots, slot: Slot, tokens: Sequence[int]) -> tuple[bool, int, int]:
        ranked = rank(self, slot, tokens)
        return ranked if self.several_users else (False, 0, slot.number)

    replace(Slots, "rank", wrong)


def the_wrong_middle_goes(replace: Replace) -> None:
    """The cache loses one token later than the slot says."""
    discard = Slots.discard

    def wrong(self: Slots, slot: Slot, end: int) -> None:
        cache = self.cache

        class Late:
            def remove(self, sequence: int, begin: int, end: int | None) -> None:
                late = end is not None and begin > 0
                more = 1 if late else 0
                cache.remove(sequence, begin + more, end and end + more)

        self.cache = Late()  # type: ignore[assignment]
        try:
            discard(self, slot, end)
        finally:
            self.cache = cache

    replace(Slots, "discard", wrong)


MISTAKES = {
    "image-of-the-first-row": ("encoder", image_of_the_first_row),
    "image-survives-its-own-place": ("encoder", image_survives_its_own_place),
    "image-belongs-to-a-sequence": ("encoder", image_belongs_to_a_sequence),
    "one-refuses-the-others-keep": ("wrapper", one_refuses_the_others_keep),
    "the-last-cache-is-not-cut": ("wrapper", the_last_cache_is_not_cut),
    "the-last-cache-decides": ("wrapper", the_last_cache_decides),
    "forks-are-short": ("slots", forks_are_short),
    "newest-slot-is-taken": ("slots", newest_slot_is_taken),
    "the-first-free-slot-is-taken": ("slots", the_first_free_slot_is_taken),
    "the-wrong-middle-goes": ("slots", the_wrong_middle_goes),
}
