"""Caches as the works use them: of one sequence, and of a batch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from ci.bench.speed.measure import STEPS, Contender, Role

Pair = tuple[Any, Any]
"""K and V."""

Finish = Callable[[Any], object]
"""Returns arrays once a lazy framework has computed them."""


def cut(pair: Pair, begin: int | None, end: int | None) -> Pair:
    keys, values = (array[:, :, begin:end] for array in pair)
    return keys, values


class Implementation:
    """A cache, or several rows of it, that does the work of contenders.

    Attributes:
        cache: the cache itself.
        most: updates until it must be rewound, if it is slow to grow.
    """

    role: Role = "peer"
    most = STEPS

    def __init__(self, name: str, cache: Any) -> None:
        self.name, self.cache = name, cache

    def contend(self, work: Callable[..., object], *given: Any, **more: Any) -> Contender:
        work = partial(work, *given) if given else work
        return Contender(self.name, self.role, work, **more)


class Subject(Implementation):
    """A cache of one sequence.

    Subclasses define `update(keys, values)` and, for the workload `snapshot`,
    `restore(saved)`.
    """

    def rewind(self, old: Pair) -> None:
        """Goes back to the tokens of `old`, with which the cache begins."""
        self.cache.trim(self.cache.offset - old[0].shape[2])

    def clear(self) -> None:
        """Removes all tokens."""
        self.cache.trim(self.cache.offset)

    def fill(self, old: Pair) -> None:
        """Appends in two parts: some layers return the first as it is, and keep it."""
        self.update(*cut(old, None, -1))
        self.update(*cut(old, -1, None))

    def refill(self, old: Pair) -> None:
        self.clear()
        self.update(*old)

    def trim(self, count: int) -> object:
        """Removes `count` tokens from the end."""
        return self.cache.trim(count)

    def keep(self, token: Pair, touched: bool) -> None:
        """Copies the content and brings it back; touched: a token was written over the
        last one in between."""
        saved = deepcopy(self.cache)
        if touched:
            self.trim(1)
            self.update(*token)
        self.restore(saved)

    def copy_and_update(self, new: Pair) -> object:
        return deepcopy(self).update(*new)


class Ours(Subject):
    """finish_cache: computes all that a cache holds."""

    role = "ours"

    def __init__(
        self, cache: Any, finish: Finish, finish_cache: Finish, name: str = "ours"
    ) -> None:
        super().__init__(name, cache)
        self.finish, self.finish_cache = finish, finish_cache
        if name != "ours":
            self.role = "also"

    def update(self, keys: Any, values: Any) -> object:
        return self.finish(self.cache.update(keys, values))

    def trim(self, count: int) -> object:
        self.cache.trim(count)
        return self.finish(self.cache.memory.list_arrays())

    def keep(self, token: Pair, touched: bool) -> None:
        tokens = self.cache.offset
        snapshot = self.cache.snapshot(0)
        if touched:
            self.cache.trim(1)
            self.update(*token)
        self.cache.restore(snapshot, tokens)
        self.cache.close(snapshot)
        self.finish_cache(self.cache)

    def count_bytes(self) -> int:
        return int(self.cache.held()["bytes"])


class Batch(Implementation):
    """A cache of several rows, padded as it likes.

    Subclasses define `mask()`; `step(keys, values)`, which makes the mask of a token for
    each row and appends the token; `rewind(tokens)`, which goes back to `tokens` columns;
    `make_filter(rows)`, which returns work that keeps these rows; and `start_again()`,
    which returns a function that brings back the arrays of now (peers replace their
    arrays, so that these need no copy). If rows can join and leave: `extend(other)` and
    `extract(row, token)`.
    """

    can_join = True
