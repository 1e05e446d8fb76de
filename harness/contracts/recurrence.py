"""A recurrent layer: small, exact, and telling for what it has read.

A cache computes nothing; the layer above it does. So the harness plays that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.answers import read_list
from lockstep.harness.contracts.naming import compare_numbers
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.system import Column, split_pair, to_numpy
from lockstep.harness.contracts.watch import holds
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.harness.core.payload import F32, Table

MODULUS = 65_521
"""The largest prime below 2 ** 16: float32 holds all residues."""

NEAR_STATE = MODULUS / 256
"""States with a smaller error in each number are called near: two of different tokens are
farther apart in some number."""

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


def get_state_shapes(config: Config, batch: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the shapes of the conv and the delta states of a layer."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = batch, config["conv_width"] - 1, heads * key_dim
    return conv, (batch, heads, key_dim, config["value_dim"])


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
        earlier = self.deltas.get(tags[:done])
        if earlier is None:
            earlier, done = self.deltas[()], 0
        state: Whole = earlier.astype(np.int64)
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
        self, cache: Any, tags: Sequence[int], write: Callable[[Array, Array, int], None]
    ) -> list[list[Column]]:
        """Reads, folds the tokens in, writes, in as many writes as the cache asks for.

        Args:
            cache: the cache of the layer.
            tags: the tokens.
            write: writes conv and delta to the cache, and the number of new tokens.

        Returns:
            What the state at each token has read.
        """
        rows: list[list[Column]] = []
        length = len(tags)
        boundaries = read_list(cache.boundaries(length), "boundaries")
        is_plain = all(
            isinstance(length_written, int) and length_written > 0
            for length_written in boundaries
        )
        if not is_plain or sum(boundaries) != length:
            raise Broken(
                "malformed", f"boundaries({length}) returned {format_plain(boundaries)}"
            )
        for length_written in boundaries:
            earlier = self.read(cache.read(), "read")
            new, tags = tags[:length_written], tags[length_written:]
            read = [*earlier, *new]
            rows += [read[: len(earlier) + row + 1] for row in range(length_written)]
            old = tuple([seen for seen in earlier if isinstance(seen, int)])
            write(*self.compute((*old, *new), len(old)), length_written)
        rows[-1] = self.read(cache.read(), "read")
        return rows

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
        return self.read_all(pair, 1, name)[0]

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
            numbers = compare_numbers(conv, self.compute_conv(candidates[0]))
            text = f"but not with the convolution inputs of these ({numbers})"
            return [*candidates[0], text]
        return ["NaN" if np.isnan(delta).any() else self.name_drift(delta)]

    def name_drift(self, delta: F32) -> str:
        """Words for a state that is not that of any tokens, but may be near it."""
        errors = {
            tags: float(np.abs(delta - state_known).max())
            for tags, state_known in self.deltas.items()
        }
        nearest = min(errors, key=lambda tags: errors[tags])
        if errors[nearest] >= NEAR_STATE:
            return "a state of no known tokens"
        read = ", ".join(map(str, nearest)) or "none"
        numbers = compare_numbers(delta, self.deltas[nearest])
        return (
            f"the state of tokens {read} is off by {errors[nearest]:.2g} ({numbers}),"
            " allowed 0"
        )

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
