"""A second statement of what the encoder, the wrapper and the recurrent cache mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unified_book import (
    NUMBERS,
    QUICK,
    STEPS,
    Numbers,
    Sizes,
    ask,
    every_size,
    see,
    tell,
)

from lockstep.reference.batch import Batch
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

# --- wrapper ----------------------------------------------------------------------------


@every_size
@QUICK
@given(steps=STEPS)
def test_a_wrapper_of_one_is_that_one(
    sizes: Sizes, steps: list[tuple[str, Numbers]]
) -> None:
    tell(sizes, steps, wrapped=True).check_resume()


# --- recurrent --------------------------------------------------------------------------

TURNS = st.lists(
    st.tuples(st.sampled_from(("on", "on", "on", "copy", "cut", "remove")), NUMBERS),
    min_size=4,
    max_size=24,
)


@pytest.mark.parametrize("interval", [None, 1, 3])
@pytest.mark.parametrize("slots", [1, 2, 3])
@QUICK
@given(turns=TURNS)
def test_a_state_has_read_what_its_last_row_sees(
    interval: int | None, slots: int, turns: list[tuple[str, Numbers]]
) -> None:
    """The states as plain lists of tags, whose places are the positions. What is refused
    changes none of them. A batch is refused if more than `slots` would differ."""
    cache = RecurrentCache(3, 40, 6, slots, interval, checkpoints=3)
    left: list[list[int]] = [[], [], []]
    slot_of: dict[int, int] = {}  # equal for those that share
    tag = 0
    for number, (what, (first, begin, length, width, *_)) in enumerate(turns):
        one, two = first % 3, (first + 1) % 3
        if what == "on":
            owners = [(one + step) % 3 for step in range(1 + width % 3)]
            rows = [
                (len(left[owner]) + step, owner)
                for step in range(1 + length % 2)
                for owner in owners
            ]
            batch = Batch([at for at, _ in rows], [owner for _, owner in rows])
            tags = range(tag, tag + len(rows))
            tag = tags.stop
            after = slot_of | {owner: 3 * tag + owner for owner in owners}
            full = len(set(after.values())) > slots
            error = ask(lambda batch=batch, tags=tags: cache.forward(batch, tags))
            assert error == ("cache-full" if full else None)
            if full:
                continue
            slot_of = after
            for new, (_, owner) in zip(tags, rows, strict=True):
                left[owner].append(new)
            assert see(cache, batch) == [
                [*enumerate(left[owner][: at + 1])] for at, owner in rows
            ]
        elif what == "copy":
            cache.copy_prefix(one, two, len(left[one]))
            left[two] = list(left[one])
            slot_of.pop(two, None)
            if one in slot_of:
                slot_of[two] = slot_of[one]
        elif what == "remove":
            cache.remove(one, 0, None)
            left[one] = []
            slot_of.pop(one, None)
        elif ask(lambda one=one, begin=begin: cache.remove(one, begin, None)) is None:
            if begin < len(left[one]):
                slot_of[one] = -1 - number
            if begin == 0:
                slot_of.pop(one, None)
            del left[one][begin:]
        assert len(set(slot_of.values())) <= slots
        assert [cache.get_read(owner) for owner in range(3)] == [
            [(written, at) for at, written in enumerate(tags)] for tags in left
        ]


@QUICK
@given(ends=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_with_a_checkpoint_at_each_token_any_end_can_go(ends: list[int]) -> None:
    cache = RecurrentCache(1, 10, 1, interval=1, checkpoints=10)
    left: list[int] = []
    for number, end in enumerate(ends):
        while len(left) < 10:
            left.append(100 * number + len(left))
            cache.forward(Batch([len(left) - 1], [0]), left[-1:])
        cache.remove(0, end, None)
        del left[end:]
        assert [token.tag for token in cache.get_read(0)] == left
        assert [token.tag for token in cache.tokens] == left


# --- encoder ----------------------------------------------------------------------------


@QUICK
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("image", "image", "text", "reserve", "remove", "remove")),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        min_size=6,
        max_size=24,
    )
)
def test_an_encoder_holds_the_last_image_that_was_not_removed(
    steps: list[tuple[str, int, int]],
) -> None:
    cache = EncoderCache(2, 3)
    images: dict[int, list[int]] = {}
    for number, (what, at, more) in enumerate(steps):
        if what == "remove":
            end = at + more if more < 3 else None
            cache.remove(number % 2, at, end)
            gone = range(at, 99 if end is None else end)
            images = {key: tags for key, tags in images.items() if key not in gone}
        else:
            rows = [] if what == "text" else [0, 1][: 1 + more % 2]
            batch = Batch([at, at + 1, at + 2], [0, 0, 1], multimodal=rows)
            cache.forward(batch, [0, 1, 2], reserve=what == "reserve")
            if what == "image":
                cache.put([number, number + 1])
                images = {at + rows[-1]: [number, number + 1]}
        assert cache.get() == next(iter(images.values()), None)
        assert cache.cached is bool(images)


def test_a_removal_ends_the_pass_of_an_encoder() -> None:
    cache = EncoderCache(1, 1)
    cache.forward(Batch([0], [0], multimodal=[0]), [0])
    cache.remove(0, 5, None)
    with pytest.raises(ValueError, match="no row of this pass stands for an image"):
        cache.put([1])
    assert not cache.cached
