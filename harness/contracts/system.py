"""A backend as the caches of one program: what every contract with arrays shares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.operation import Op
from lockstep.harness.core.errors import Broken

SAMPLE = 16
"""One pass or update in so many keeps its arrays under watch and is put through
attention."""


def get_phase(tags: int) -> int:
    """Passes are sampled whose first tag, and this, is a multiple of SAMPLE. tags: how
    many the program has. Of few tokens the first pass is one; in longer programs it would
    be one too many each time, on an empty cache."""
    return 0 if tags <= SAMPLE else tags


MOST_KEPT = 12
"""Pairs of arrays under watch at a time: the latest."""

Content = tuple[tuple[int, ...], bytes]
"""The shape of an array, and what it holds."""


class ArrayWatch:
    """Arrays that went to a cache or came from it, and what they held then."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.kept: list[tuple[str, str, str, list[Array], list[Content]]] = []

    def keep(
        self, cache: str, name: str, pair: Sequence[Array], how: str = "returned"
    ) -> None:
        """Remembers what the arrays hold that the operation `name` of `cache` returned,
        or "was given"."""
        floats = [self.arrays.to_numpy(array) for array in pair]
        content = [(array.shape, array.tobytes()) for array in floats]
        self.kept.append((cache, name, how, list(pair), content))
        del self.kept[:-MOST_KEPT]

    def check(self, concerned: Callable[[str], bool] = lambda cache: True) -> None:
        """Raises Broken("alias") if an array of a concerned cache has changed."""
        for cache, name, how, arrays, content in self.kept:
            if concerned(cache):
                for array, (shape, held) in zip(arrays, content, strict=True):
                    now = self.arrays.to_numpy(array)
                    if now.shape != shape or not holds(now, held):
                        raise Broken(
                            "alias",
                            f"an array that {name} {how} has changed before it was"
                            f" allowed to{'' if cache == 'a' else f' (cache {cache})'}",
                            operation=name,
                        )

    def drop(self, cache: str) -> None:
        """The arrays of `cache` are no longer promised to hold anything."""
        if self.kept:
            self.kept = [kept for kept in self.kept if kept[0] != cache]


def holds(array: npt.NDArray[Any], content: bytes) -> bool:
    """Says whether the array still has the numbers that are in `content`; NaN is one.
    Equal bytes, the usual case, need no look at the numbers."""
    if array.tobytes() == content:
        return True
    if array.nbytes != len(content):
        return False
    before = np.frombuffer(content, array.dtype)
    return np.array_equal(array.ravel(), before, equal_nan=True)


class System:
    """The system under test, for one program.

    The executor calls `settle(op)` before each operation and `finish()` at the end: both
    check that arrays that were handed out still hold what they must. `margin` is the
    largest error so far of what has a tolerance, as a share of that. After
    `tell_layout()` answers name the columns that came back, and those that each row sees.

    Args:
        backend: what is tested.
        config: a complete config.
        tags: how many tags the program has.
        every: watch the arrays of every step and put each through attention.
        writes: the operations after which a view of the cache need not hold.
    """

    margin: float

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any],
        tags: int,
        every: bool,
        writes: Collection[str],
    ) -> None:
        self.backend, self.arrays = backend, backend.arrays
        self.config = {**config, "poison": backend.poison}
        self.every, self.writes = every, writes
        self.limit = max(1, tags)
        self.phase = get_phase(self.limit)
        self.watch = ArrayWatch(backend.arrays)
        self.tells_layout = False

    def tell_layout(self) -> None:
        self.tells_layout = True

    def settle(self, op: Op) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.watch.check()

    def is_sampled(self, tag: int) -> bool:
        """Says whether the pass that begins with `tag` gets the costly checks."""
        return self.every or (tag + self.phase) % SAMPLE == 0

    def overwrite(self, arrays: Sequence[Array]) -> None:
        """Writes other numbers into arrays that a cache was given, as a model does."""
        if self.backend.overwrite:
            for array in arrays:
                self.backend.overwrite(array)


def judge_attention(
    got: npt.NDArray[Any], wanted: npt.NDArray[Any], tolerance: float, row: int, name: str
) -> float:
    """Compares one row of attention with the reference's.

    Args:
        got: [heads, value_dim], computed by the backend's framework.
        wanted: the same by the reference, in double precision.
        tolerance: the largest error that is allowed.
        row: its number.
        name: the operation whose arrays were attended to.

    Returns:
        The error as a share of the tolerance.

    Raises:
        Broken: the error is larger.
    """
    error = float(np.abs(got - wanted).max())
    if not error <= tolerance:
        raise Broken(
            "attention",
            f"attention over the arrays of {name} is off by {error:.2g} in row {row},"
            f" allowed {tolerance:.2g}; K, V and the mask are as expected",
        )
    return error / tolerance


def ask(call: Callable[[], Any]) -> Any:
    """Returns what the call answers, or {"error": "usage"} if it raises ValueError."""
    try:
        return call()
    except ValueError:
        return {"error": "usage"}
