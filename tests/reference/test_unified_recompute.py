"""A second statement of what the causal family means.

Beside a cache stands a book of who holds what. Whatever happened, cache and book see the
same, and so does a fresh cache that is fed with what is left.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unified_book import (
    LENGTHS,
    NUMBERS,
    QUICK,
    STEPS,
    Book,
    Numbers,
    Sizes,
    ask,
    cut,
    every_size,
    make_batch,
    see,
    tell,
)

from reference.batch import Batch
from reference.causal import CausalCache


def feed(book: Book) -> CausalCache:
    """A fresh cache with what is left, in one pass: in one nothing is evicted."""
    sizes = book.sizes
    memory = sizes.get_memory()
    cache = Sizes(
        sizes.sequences, 1000, 1000, sizes.window, memory, sizes.chunk, sizes.shift
    ).open()
    rows = [(key, tag) for key, tags in book.held.items() for tag in tags]
    if rows:
        positions = [position for (_, position), _ in rows]
        owners = [owner for (owner, _), _ in rows]
        cache.forward(Batch(positions, owners), [tag for _, tag in rows])
    return cache


@every_size
@QUICK
@given(steps=STEPS, last=NUMBERS)
def test_any_history_sees_what_its_book_says_and_a_fresh_cache_does(
    sizes: Sizes, steps: list[tuple[str, Numbers]], last: Numbers
) -> None:
    story = tell(sizes, steps)
    story.check_resume()
    batch = make_batch(story.book, last)
    fresh, tags = feed(story.book), range(1000, 1000 + len(batch))
    if ask(lambda: story.cache.forward(batch, tags)) is None:
        fresh.forward(batch, tags)
        assert see(story.part, batch) == see(fresh, batch)


@every_size
@QUICK
@given(steps=STEPS, since=STEPS, last=NUMBERS)
def test_to_load_is_never_to_have_gone_on(
    sizes: Sizes,
    steps: list[tuple[str, Numbers]],
    since: list[tuple[str, Numbers]],
    last: Numbers,
) -> None:
    story, stayed = tell(sizes, steps), tell(sizes, steps)
    saved = story.part.save()
    for what, numbers in since:
        story.step(what, numbers)
    story.part.load(saved)
    story.book, story.tag = stayed.book, stayed.tag
    story.forward(make_batch(story.book, last))


# --- one history, cut differently -------------------------------------------------------


@every_size
@QUICK
@given(lengths=LENGTHS)
def test_cuts_of_one_history_agree(sizes: Sizes, lengths: list[int]) -> None:
    """With a memory too, as long as positions only grow."""
    limit = inf if sizes.get_memory() < inf else sizes.capacity
    total = int(min(sum(lengths), limit))
    parts, rows = sizes.open(), []
    for tags in cut([min(length, sizes.batch) for length in lengths], total):
        batch = Batch(tags, [0] * len(tags))
        parts.forward(batch, tags)
        rows += see(parts, batch)
    total = len(rows)
    whole = Sizes(1, 100, 100, sizes.window, inf, sizes.chunk).open()
    batch = Batch(range(total), [0] * total)
    whole.forward(batch, range(total))
    assert rows == see(whole, batch)


@pytest.mark.parametrize("window", [1, 2, 5, 8])
@QUICK
@given(steps=st.lists(NUMBERS, min_size=1, max_size=6))
def test_a_window_without_eviction_is_a_mask_over_a_causal_cache(
    window: int, steps: list[Numbers]
) -> None:
    """A memory of the capacity, 8, is none."""
    masked = Sizes(2, 8, window=window, memory=8).open()
    book = Book(Sizes(2, 8))
    causal = book.sizes.open()
    for number, numbers in enumerate(steps):
        batch = make_batch(book, numbers)
        tags = range(10 * number, 10 * number + len(batch))
        book.forward(batch, tags)
        error = ask(lambda batch=batch, tags=tags: causal.forward(batch, tags))
        assert ask(lambda batch=batch, tags=tags: masked.forward(batch, tags)) == error
        if error is None:
            assert see(masked, batch) == [
                [pair for pair in row if pair[0] >= position - window]
                for position, row in zip(batch.positions, see(causal, batch), strict=True)
            ]


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("sequences", [1, 2, 4])
@QUICK
@given(turns=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=30))
def test_sequences_that_only_go_on_always_fit(
    window: int, sequences: int, turns: list[list[int]]
) -> None:
    """Each row sees the tokens of its window, with itself one more, and none is ever
    refused: whoever is idle lets go too."""
    cache = Sizes(sequences, 50, 4, window, window).open()
    ends = [0] * sequences
    tags: dict[int, tuple[int, int]] = {}
    for turn in turns:
        rows = []
        for owner in (number % sequences for number in turn):
            rows.append((ends[owner], owner))
            ends[owner] += 1
        new = range(len(tags), len(tags) + len(rows))
        tags.update(zip(new, rows, strict=True))
        batch = Batch([at for at, _ in rows], [owner for _, owner in rows])
        cache.forward(batch, new)
        seen = [
            [(tags[tag], position) for position, tag in row] for row in see(cache, batch)
        ]
        assert seen == [
            [((at, owner), at) for at in range(max(0, last - window), last + 1)]
            for last, owner in rows
        ]
