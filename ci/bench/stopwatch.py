"""Measures the time of a backend while it is checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array

ANSWERS = frozenset(
    {"update", "make_mask", "state", "view", "read", "get", "read_states"}
)
"""The methods that return arrays; the stopwatch waits for these arrays."""

CACHES = frozenset({"clone", "of", "extract"})
"""The methods that return another cache, which is timed too."""


class Stopwatch:
    """Wraps a backend without changing its results, and times its code.

    The time includes all calls of caches until the returned arrays are computed, making
    and overwriting the arrays that are passed to caches, and attention of the framework.
    A call inside another call, such as a trie's call of its layers, counts as part of the
    outer call. Reading an array again is not timed.

    Attributes:
        backend: the wrapped backend.
    """

    def __init__(self, backend: Backend) -> None:
        self.arrays, self.open_cache = backend.arrays, backend.open
        self.spent, self.calls, self.is_running = 0.0, 0, False
        overwrite = backend.overwrite and partial(self.time, backend.overwrite)
        arrays = TimedArrays(self)
        self.backend = replace(
            backend, open=self.open, arrays=arrays, overwrite=overwrite
        )

    def open(self, config: Mapping[str, Any]) -> Any:
        if config.get("rows", 0) is None and config["caches"]:  # the caches of a batch
            config = {**config, "caches": [*map(unwrap, config["caches"])]}
        return TimedCache(self.time(self.open_cache, config), self)

    def time(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Times a call, unless an outer call is already being timed."""
        if self.is_running:
            return call(*arguments)
        self.is_running = True
        begin = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.spent += time.perf_counter() - begin
            self.calls += 1
            self.is_running = False

    def wait(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `method` and waits for its arrays."""
        answer = method(*arguments)
        for array in flatten(answer):
            self.arrays.to_numpy(array)
        return answer

    def take(self) -> float:
        """Returns the seconds since the last `take`, without the overhead of timing."""
        spent, calls = self.spent, self.calls
        empty = []
        for _ in range(2000):
            self.spent = 0.0
            self.time(int)
            empty.append(self.spent)
        self.spent, self.calls = 0.0, 0
        return spent - calls * median(empty)


def unwrap(value: Any) -> Any:
    return value.cache if isinstance(value, TimedCache) else value


def flatten(answer: Any) -> Iterator[Array]:
    """Iterates over the arrays in an answer, at every level of nesting."""
    if isinstance(answer, tuple | list):
        for part in answer:
            yield from flatten(part)
    elif answer is not None and not isinstance(answer, str):
        yield answer


class TimedArrays:
    """Wraps `Arrays`, and measures making arrays and attention."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch, self.arrays = watch, watch.arrays

    def from_numpy(self, array: Any, dtype: str) -> Array:
        return self.watch.time(self.arrays.from_numpy, array, dtype)

    def attend(self, *arrays: Any) -> Array:
        return self.watch.time(self.watch.wait, self.arrays.attend, *arrays)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arrays, name)


class TimedCache:
    """A cache of any contract whose calls are timed."""

    def __init__(self, cache: Any, watch: Stopwatch) -> None:
        self.cache, self.watch = cache, watch

    def __getattr__(self, name: str) -> Any:
        watch = self.watch
        member = watch.time(getattr, self.cache, name)
        if watch.is_running or not callable(member):
            return member
        if name == "extend":
            return lambda *given: watch.time(member, *map(unwrap, given))
        if name in CACHES:
            return lambda *arguments: TimedCache(watch.time(member, *arguments), watch)
        if name in ANSWERS:
            return partial(watch.time, watch.wait, member)
        return partial(watch.time, member)
