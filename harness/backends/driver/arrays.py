"""Arrays as they go over the wire: a shape and plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.fields import Malformed, say

MOST_WORDS = 1 << 16


WORDS: dict[float, str] = {}
"""Numbers of float32 as JSON writes them: payloads are few numbers, many times."""


def write_numbers(numbers: Sequence[float]) -> list[str]:
    """Each with nine digits, which tell any two apart; but 0 has no sign."""
    words = list(map(WORDS.get, numbers))
    if None not in words:
        return words  # type: ignore[return-value]
    written = ("%.9g " * len(numbers) % tuple(numbers)).split()
    if len(WORDS) > MOST_WORDS:
        WORDS.clear()
    WORDS.update(zip(numbers, written, strict=True))
    return written


class Tensor:
    """An array of some dtype: its content as float32, or bool."""

    def __init__(self, content: npt.NDArray[Any], dtype: str) -> None:
        self.content, self.dtype = content, dtype

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.content[index], self.dtype)

    def to_json(self) -> str:
        numbers = ",".join(write_numbers(self.content.ravel().tolist()))
        shape = ",".join(map(str, self.content.shape))
        return f'{{"shape":[{shape}],"data":[{numbers}]}}'


class PromisedMask:
    """The mask of an update that is still to come: it is asked for together with what is
    written, in one message."""

    def __init__(self, length: int, rows: int) -> None:
        self.length, self.rows = length, rows
        self.tensor: Tensor | None = None

    def get(self) -> Tensor:
        if self.tensor is None:
            raise ValueError("the update that this mask is for was not made")
        return self.tensor

    def __getitem__(self, index: Any) -> Tensor:
        return self.get()[index]


class WireArrays:
    """The arrays of `harness.backends.interface.Arrays` on numpy.

    causal: how a mask "causal" is aligned.
    """

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Tensor:
        return Tensor(array, dtype)

    def to_numpy(self, array: Tensor | PromisedMask) -> npt.NDArray[Any]:
        return get_tensor(array).content

    def dtype(self, array: Tensor | PromisedMask) -> str:
        return get_tensor(array).dtype

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any) -> Tensor:
        """In float32: a driver stores, and does not compute."""
        scale = 1 / math.sqrt(keys.content.shape[3])
        scores = queries.content @ keys.content.swapaxes(2, 3) * np.float32(scale)
        seen = get_tensor(mask).content
        if seen.dtype != np.bool_:
            seen = seen == 0
        scores = np.where(seen, scores, np.float32(-np.inf))
        content = np.where(np.isfinite(values.content), values.content, 0)
        with np.errstate(invalid="ignore"):  # a row that sees nothing
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        return Tensor(weights @ content, queries.dtype)


def get_tensor(array: Tensor | PromisedMask) -> Tensor:
    if isinstance(array, PromisedMask):
        return array.get()
    if not isinstance(array, Tensor):
        raise TypeError(f"{type(array).__name__} is no array of a driver")
    return array


def parse_array(value: Any, name: str, dtype: str) -> Tensor:
    """{"shape": […], "data": […]} as a Tensor. dtype: what it has unless it says so."""
    if not isinstance(value, Mapping):
        raise Malformed(f"{name} is {say(value)}, not an array with shape and data")
    shape, data = value.get("shape"), value.get("data")
    own = value.get("dtype", dtype)
    if own not in DTYPES:
        raise Malformed(f"{name} has dtype {say(own)}, not one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(map(is_size, shape)) or len(shape) > 8:
        raise Malformed(f"{name} has shape {say(shape)}, not a list of sizes")
    if not isinstance(data, list):
        raise Malformed(f"{name} has data {say(data)}, not a flat list of numbers")
    if len(data) != math.prod(shape):
        raise Malformed(
            f"{name} has {len(data)} numbers, but its shape {shape} is for"
            f" {math.prod(shape)}"
        )
    flat = parse_flags(data, name) if own == "bool" else parse_numbers(data, name)
    return Tensor(flat.reshape(shape), own)


DTYPES = ("float32", "float16", "bfloat16", "bool")


def is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


def parse_numbers(data: Sequence[Any], name: str) -> npt.NDArray[np.float32]:
    """null is NaN; what float32 cannot hold is infinite."""
    if not set(map(type, data)) <= NUMBERS:
        for place, number in enumerate(data):
            if type(number) not in NUMBERS:
                raise Malformed(f"{name}, place {place}, is {say(number)}, not a number")
    try:
        array = np.array(data, np.float64)
    except OverflowError:
        raise Malformed(f"{name} has a whole number of over 300 digits") from None
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


NUMBERS = {float, int, type(None)}


def parse_flags(data: Sequence[Any], name: str) -> npt.NDArray[np.bool_]:
    if not (set(map(type, data)) <= {bool, int} and set(data) <= {0, 1}):
        for place, flag in enumerate(data):
            if type(flag) not in (bool, int) or flag not in (0, 1):
                raise Malformed(f"{name}, place {place}, is {say(flag)}, not 0 or 1")
    return np.array(data, np.bool_)


def parse_mask(
    value: Any, promised: PromisedMask, columns: int, dtype: str, causal: Alignment
) -> Tensor:
    """The mask of an update: null where every column is seen, "causal", or an array."""
    rows = promised.rows
    if value is None:
        return Tensor(np.ones((rows, columns), np.bool_), dtype)
    if value == "causal":
        first = columns - promised.length if causal == "lower-right" else 0
        return Tensor(np.tri(rows, columns, first, dtype=np.bool_), dtype)
    if isinstance(value, str):
        raise Malformed(f'mask is {say(value)}; in words it can only be "causal"')
    return parse_array(value, "mask", dtype)
