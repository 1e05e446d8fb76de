"""Wraps caches in the interface of the workloads: single sequences and batches."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from ci.bench.speed.measure import STEPS, Contender, Role

Pair = tuple[Any, Any]
"""K and V."""

Finish = Callable[[Any], object]
"""Returns its argument after a lazy framework has computed the arrays."""


def cut(pair: Pair, begin: int | None, end: int | None) -> Pair:
    keys, values = (array[:, :, begin:end] for array in pair)
    return keys, values


class Implementation:
    """A wrapped cache of one or several rows, which does the work of a contender.

    Attributes:
        cache: the wrapped cache.
        most: the number of updates until the cache must be rewound; small for a cache
            whose updates become slow as it grows.
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
        """Trims the cache to the tokens of `old`, which are its first tokens."""
        self.cache.trim(self.cache.offset - old[0].shape[2])

    def clear(self) -> None:
        """Removes all tokens."""
        self.cache.trim(self.cache.offset)

    def fill(self, old: Pair) -> None:
        """Appends the tokens in two parts, because some layers keep the first arrays
        without a copy."""
        self.update(*cut(old, None, -1))
        self.update(*cut(old, -1, None))

    def refill(self, old: Pair) -> None:
        self.clear()
        self.update(*old)

    def trim(self, count: int) -> object:
        """Removes `count` tokens from the end."""
        return self.cache.trim(count)

    def keep(self, token: Pair, touched: bool) -> None:
        """Copies the content, and restores it.

        Args:
            token: K and V of one token.
            touched: whether `token` overwrites the last token before the restore.
        """
        saved = deepcopy(self.cache)
        if touched:
            self.trim(1)
            self.update(*token)
        self.restore(saved)

    def copy_and_update(self, new: Pair) -> object:
        return deepcopy(self).update(*new)


class Ours(Subject):
    """Our cache of one sequence, as a contender.

    Args:
        cache: the cache.
        finish: returns its argument after the arrays are computed.
        finish_cache: returns its argument after the content of the cache is computed.
        name: the name of the contender.
    """

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
    """A cache of several rows, with any padding.

    Subclasses define

    * `mask()`: makes the mask of the next token;
    * `step(keys, values)`: makes the mask, and appends a token to each row;
    * `rewind(tokens)`: trims the cache to `tokens` columns;
    * `make_filter(rows)`: returns work that keeps only these rows;
    * `start_again()`: returns a function that restores the current arrays. Released
      caches replace their arrays in each update, so they can restore the old arrays
      without a copy;
    * if rows can join and leave: `extend(other)` and `extract(row, token)`.
    """

    can_join = True
