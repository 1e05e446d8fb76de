"""Caches as the works use them: of one sequence, and of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Subject(ABC):
    """A cache of one sequence.

    Attributes:
        cache: the cache itself.
        most: updates until it must be rewound, if it is slow to grow.
    """

    role: Role = "peer"
    most = STEPS

    def __init__(self, name: str, cache: Any) -> None:
        self.name, self.cache = name, cache

    @abstractmethod
    def update(self, keys: Any, values: Any) -> object: ...

    @abstractmethod
    def rewind(self, old: Pair) -> object:
        """Goes back to the tokens of `old`, which it begins with."""

    def fill(self, old: Pair) -> None:
        """Appends in two parts: some layers return the first as it is, and keep it."""
        self.update(*cut(old, None, -1))
        self.update(*cut(old, -1, None))

    def clear(self) -> None:
        """Removes all tokens."""
        raise NotImplementedError(self.name)

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

    def restore(self, saved: Any) -> object:
        raise NotImplementedError(self.name)

    def copy_and_update(self, new: Pair) -> object:
        return deepcopy(self).update(*new)

    def contend(self, work: Callable[..., object], *given: Any, **more: Any) -> Contender:
        return Contender(self.name, self.role, partial(work, *given), **more)


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

    def rewind(self, old: Pair) -> None:
        self.cache.trim(self.cache.offset - old[0].shape[2])

    def clear(self) -> None:
        self.cache.trim(self.cache.offset)

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


class Batch(ABC):
    """A cache of several rows, padded as it likes.

    Attributes:
        can_join: whether rows of another batch can be appended, and one taken out.
    """

    role: Role = "peer"
    most = STEPS
    can_join = True

    def __init__(self, name: str, cache: Any) -> None:
        self.name, self.cache = name, cache

    @abstractmethod
    def step(self, keys: Any, values: Any) -> object:
        """Makes the mask of a token for each row, and appends the token."""

    @abstractmethod
    def mask(self) -> object: ...

    @abstractmethod
    def rewind(self, tokens: int) -> object:
        """Goes back to `tokens` columns."""

    @abstractmethod
    def make_filter(self, rows: list[int]) -> Callable[[], object]:
        """Returns work that keeps these rows."""

    @abstractmethod
    def start_again(self) -> Callable[[], object]:
        """Returns a function that brings back the arrays of now. Peers replace their
        arrays, so that these need no copy."""

    def extend(self, other: Any) -> object:
        raise NotImplementedError(self.name)

    def extract(self, row: int, token: Pair) -> object:
        raise NotImplementedError(self.name)
