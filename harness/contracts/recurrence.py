"""Defines a small, exact recurrent layer, whose states show which tokens they have read.

A cache stores states, but does not compute them; the layer above the cache does. The
harness acts as this layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.answers import read_list, require_index
from lockstep.harness.contracts.naming import compare_numbers
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.system import Column, split_pair, to_numpy
from lockstep.harness.contracts.watch import holds
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.harness.core.payload import F32, Table

MODULUS = 65_521
"""The largest prime below 2 ** 16; float32 represents all residues exactly."""

NEAR_STATE = MODULUS / 256
"""A state is close to a known state if each number's error is smaller than this; states
of different tokens differ by more in at least one number."""

FACTOR = 31
Tags = tuple[int, ...]
Whole = npt.NDArray[np.int64]


@cache
def get_fold(shape: tuple[int, ...]) -> tuple[Whole, Whole]:
    """Returns the two factors of the fold, the function that adds a token to a state.

    A fold multiplies the state by the first factor, multiplies the token's number by the
    second factor, and adds the two. Both factors differ at each index.
    """
    places = np.arange(np.prod(shape)).reshape(shape)
    return FACTOR + 2 * places, places + 1


def get_state_shapes(config: Config, batch: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the shapes of a layer's conv state and delta state."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = batch, config["conv_width"] - 1, heads * key_dim
    return conv, (batch, heads, key_dim, config["value_dim"])


class Recurrence:
    """Adds tokens to states, and identifies the tokens that a state has read.

    `advance` reads the state of a cache, adds the new tokens, and writes the result. The
    state is a polynomial hash of integers, so two states are equal only if they have read
    the same tokens in the same order. float32 represents the hash exactly.

    conv [1, conv_width - 1, heads * key_dim] holds the keys of the last tokens, with
    zeros in place of missing tokens; delta [1, heads, key_dim, value_dim] is the hash in
    float32.
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
        """Stores the delta state after `tags`, and returns it as float32."""
        delta = self.deltas[tags] = state.astype(np.float32)
        self.known.setdefault(delta.tobytes(), []).append(tags)
        return delta

    def compute_delta(self, tags: Tags, done: int = 0) -> F32:
        """Returns the delta state after `tags`.

        Args:
            tags: all tokens that the state has read.
            done: the number of leading tokens whose state is probably known already.
        """
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
        """Returns the conv state after `tags`."""
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
        """Adds tokens to a cache's state, in as many writes as the cache requests.

        Args:
            cache: the cache of the layer.
            tags: the new tokens.
            write: writes conv, delta and the number of new tokens to the cache.

        Returns:
            For each new token, the tokens that the state has read up to this token.
        """
        rows: list[list[Column]] = []
        length = len(tags)
        answer = read_list(cache.boundaries(length), "boundaries")
        boundaries = [require_index(item, "a length in boundaries") for item in answer]
        if min(boundaries, default=0) < 1 or sum(boundaries) != length:
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
        """Returns conv and delta after `tags`; for `done` see `compute_delta`."""
        arrays = self.arrays
        # Copy: a framework array may share memory with the numpy array and be written to.
        conv = arrays.from_numpy(self.compute_conv(tags).copy(), self.dtype)
        delta = self.compute_delta(tags, done).copy()
        return conv, arrays.from_numpy(delta, "float32")

    def read(self, pair: Any, name: str) -> list[Column]:
        """Lists the tokens that a returned (conv, delta) has read, in order.

        If the state equals no known state, the list contains a description instead.
        """
        return self.read_all(pair, 1, name)[0]

    def read_all(self, pair: Any, count: int, name: str) -> list[list[Column]]:
        """Lists the tokens that each of `count` states has read; axis 0 of the arrays is
        the index of the state."""
        conv, delta = split_pair(pair, name)
        conv_shape = (count, self.width, self.channels)
        delta_shape = (count, *self.shape[1:])
        conv = self.get_floats(conv, conv_shape, self.dtype, f"conv of {name}")
        delta = self.get_floats(delta, delta_shape, "float32", f"delta of {name}")
        return [
            self.identify(conv[at : at + 1], delta[at : at + 1]) for at in range(count)
        ]

    def identify(self, conv: F32, delta: F32) -> list[Column]:
        """Lists the tokens that one state, given as numpy arrays, has read."""
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
        """Describes an unknown state, by its difference from the nearest known state if
        one is near."""
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
