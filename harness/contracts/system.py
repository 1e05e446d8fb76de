"""The system under test: what every contract with arrays shares.

A cache computes nothing; the layers above it do. So the harness plays those layers: it
puts a pass through attention, and plays a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.reading import Column, split_pair, to_numpy
from lockstep.harness.core.errors import Broken, clean
from lockstep.harness.core.payload import F32, Table

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

    def check(self, concerned: Callable[[str], bool] = lambda name: True) -> None:
        """Raises Broken("alias") if an array of a concerned cache has changed."""
        for owner, name, how, arrays, content in self.kept:
            if not concerned(owner):
                continue
            for array, (shape, held) in zip(arrays, content, strict=True):
                now = self.arrays.to_numpy(array)
                if now.shape != shape or not holds(now, held):
                    raise Broken(
                        "alias",
                        f"an array that {name} {how} has changed before it was allowed"
                        f" to{'' if owner == 'a' else f' (cache {owner})'}",
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
        config: Config,
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


def ask_backend(
    call: Callable[[], Any], errors: Mapping[str, type[Exception]] | None = None
) -> Answer:
    """Returns {"error": name, "why": in its words} if the backend refuses, else
    {"result": value} or {}.

    Args:
        call: asks the backend.
        errors: its exceptions beside ValueError, by name.
    """
    known: list[tuple[str, type[Exception]]] = [("usage", ValueError)]
    known += (errors or {}).items()
    try:
        result = call()
    except tuple(kind for _, kind in known) as error:
        name = next(name for name, kind in known if isinstance(error, kind))
        if not str(error).strip():
            raise Broken("error", f"a {name} error came without a message") from error
        return {"error": name, "why": clean(str(error))}
    return {} if result is None else {"result": result}


# --- a recurrent layer: small, exact, and telling for what it has read ------------------


MODULUS = 65_521
"""The largest prime below 2 ** 16: float32 holds all residues."""

FACTOR = 31
Tags = tuple[int, ...]
Whole = npt.NDArray[np.int64]


@cache
def get_fold(shape: tuple[int, ...]) -> tuple[Whole, Whole]:
    """Returns the factors of a token for a state of this shape.

    The first multiplies the state, the second the number of the token before it is
    added. Both are different in each place.
    """
    places = np.arange(np.prod(shape)).reshape(shape)
    return FACTOR + 2 * places, places + 1


class Recurrence:
    """Folds tokens into states, and reads states.

    It reads the state of a cache, folds the new tokens in, and writes the result. The
    fold is a polynomial hash in whole numbers, so two states are equal only if the same
    tokens were read in the same order, and float32 holds them exactly.

    conv [1, conv_width - 1, heads * key_dim] holds the keys of the last tokens, zeros
    where there were none; delta [1, heads, key_dim, value_dim] is the hash, float32.
    """

    def __init__(self, arrays: Arrays, keys: Table, config: Config) -> None:
        self.arrays, self.keys = arrays, keys
        self.dtype: str = config["dtype"]
        self.width: int = config["conv_width"] - 1
        self.channels: int = config["heads"] * config["key_dim"]
        self.shape = (1, config["heads"], config["key_dim"], config["value_dim"])
        self.factor, self.weight = get_fold(self.shape)
        self.convs: dict[Tags, F32] = {}
        self.deltas: dict[Tags, F32] = {}
        self.known: dict[bytes, list[Tags]] = {}
        self.learn((), np.zeros(self.shape, np.int64))

    def learn(self, tags: Tags, state: Whole) -> F32:
        """The state after `tags` as float32, which is known from now on."""
        delta = self.deltas[tags] = state.astype(np.float32)
        self.known.setdefault(delta.tobytes(), []).append(tags)
        return delta

    def compute_delta(self, tags: Tags, done: int = 0) -> F32:
        """The delta state after `tags`: each token multiplies the state and adds its own
        number, both different in each place. done: how many of them a state that was
        computed before has read, if that is known."""
        delta = self.deltas.get(tags)
        if delta is not None:
            return delta
        before = self.deltas.get(tags[:done])
        if before is None:
            before, done = self.deltas[()], 0
        state: Whole = before.astype(np.int64)
        for tag in tags[done:]:
            state = (state * self.factor + (tag + 1) * self.weight) % MODULUS
        return self.learn(tags, state)

    def compute_conv(self, tags: Tags) -> F32:
        """The conv state after `tags`."""
        last = tags[-self.width :]
        if last not in self.convs:
            conv = np.zeros((1, self.width, self.channels), np.float32)
            if last:
                rows = self.keys.get_vectors(last)[0].swapaxes(0, 1)  # [n, heads, d]
                conv[0, -len(last) :] = rows.reshape(len(last), self.channels)
            self.convs[last] = conv
        return self.convs[last]

    def advance(
        self, cache: Any, tags: Sequence[int], give: Callable[[Sequence[Array]], None]
    ) -> tuple[list[list[Column]], Sequence[Array]]:
        """Reads, folds the tokens in, writes, in as many writes as the cache asks for.
        Returns what the state at each token has read, and the arrays that were written
        last. give: is told of arrays that are about to be written."""
        written: Sequence[Array] = ()
        rows: list[list[Column]] = []
        length = len(tags)
        boundaries = list(cache.boundaries(length))
        if sum(boundaries) != length or min(boundaries, default=1) < 1:
            raise Broken("malformed", f"boundaries({length}) returned {boundaries}")
        for part in boundaries:
            before = self.read(cache.read(), "read")
            new, tags = tags[:part], tags[part:]
            read = [*before, *new]
            rows += [read[: len(before) + row + 1] for row in range(part)]
            old = tuple([seen for seen in before if isinstance(seen, int)])
            written = self.compute((*old, *new), len(old))
            give(written)
            cache.write(*written, part)
        rows[-1] = self.read(cache.read(), "read")
        return rows, written

    def compute(self, tags: Tags, done: int) -> tuple[Array, Array]:
        """conv and delta after `tags`. done: see `compute_delta`."""
        arrays = self.arrays
        # Copies: an array of the framework may share their memory, and be written.
        conv = arrays.from_numpy(self.compute_conv(tags).copy(), self.dtype)
        delta = self.compute_delta(tags, done).copy()
        return conv, arrays.from_numpy(delta, "float32")

    def read(self, pair: Any, name: str) -> list[Column]:
        """The tokens that a returned (conv, delta) has read, in the order of the list
        that it equals; words if it equals none."""
        conv, delta = split_pair(pair, name)
        conv_shape = (1, self.width, self.channels)
        conv = self.get_floats(conv, conv_shape, self.dtype, f"conv of {name}")
        delta = self.get_floats(delta, self.shape, "float32", f"delta of {name}")
        return self.identify(conv, delta)

    def read_all(self, pair: Any, count: int, name: str) -> list[list[Column]]:
        """Reads `count` states, one after the other in the first axis."""
        conv, delta = split_pair(pair, name)
        conv_shape = (count, self.width, self.channels)
        delta_shape = (count, *self.shape[1:])
        conv = self.get_floats(conv, conv_shape, self.dtype, f"conv of {name}")
        delta = self.get_floats(delta, delta_shape, "float32", f"delta of {name}")
        return [
            self.identify(conv[at : at + 1], delta[at : at + 1]) for at in range(count)
        ]

    def identify(self, conv: F32, delta: F32) -> list[Column]:
        """Lists the tokens that one state, as numpy has it, has read."""
        candidates = self.known.get(delta.tobytes(), [])
        for tags in candidates:
            if holds(conv, self.compute_conv(tags).tobytes()):
                return list(tags)
        if candidates:
            return [*candidates[0], "but not with the convolution inputs of these"]
        return ["NaN" if np.isnan(delta).any() else "a state of no known tokens"]

    def get_floats(
        self, array: Array, shape: Sequence[int], dtype: str, name: str
    ) -> npt.NDArray[Any]:
        floats = to_numpy(self.arrays, array, name)
        got = self.arrays.dtype(array)
        if floats.shape != tuple(shape) or got != dtype:
            raise Broken(
                "malformed",
                f"{name} is {got} of shape {list(floats.shape)},"
                f" not {dtype} of shape {list(shape)}",
            )
        return floats
