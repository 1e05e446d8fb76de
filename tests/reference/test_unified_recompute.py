"""A second statement of what the causal family means.

Beside a cache stands a book of who holds what. Whatever happened, cache and book see the
same, and so does a fresh cache that is fed with what is left.
"""

from __future__ import annotations

from hypothesis import given
from unified_book import (
    NUMBERS,
    QUICK,
    STEPS,
    Book,
    Numbers,
    Sizes,
    ask,
    every_size,
    make_batch,
    see,
    tell,
)

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache


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
