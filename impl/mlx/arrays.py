"""Implements the harness's interface of arrays for MLX arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

DTYPES = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
}


class MLXArrays:
    """Implements `harness.backends.interface.Arrays` on one device.

    Args:
        device: None for the default device.
    """

    def __init__(self, device: mx.Device | None = None) -> None:
        self.device = device or mx.default_device()

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> mx.array:
        """Converts the dtype during the copy, so that no lazy evaluation remains."""
        return mx.array(array, DTYPES[dtype])

    def to_numpy(self, array: mx.array) -> npt.NDArray[Any]:
        """Evaluates `array` only once.

        numpy converts to float32, because a second evaluation costs more than a small
        array.
        """
        if array.dtype == mx.bfloat16:
            return widen(array)
        content = np.asarray(array)
        return content.astype(np.float32) if content.dtype == np.float16 else content

    def dtype(self, array: mx.array) -> str:
        return get_name(array.dtype)

    def overwrite(self, array: mx.array) -> None:
        """Fills the array with NaN, like a slice assignment by the caller.

        The assignment changes the Python object, so a cache that keeps this object sees
        the change. An array that was made from the object earlier does not change,
        whether or not it was evaluated.
        """
        if array.size:
            with mx.stream(self.device):
                array[...] = mx.nan

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, mask: Any
    ) -> mx.array:
        """Calls `mx.fast.scaled_dot_product_attention`, whose "causal" is aligned to the
        lower right."""
        scale = queries.shape[-1] ** -0.5
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, stream=self.device
        )


@cache
def get_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


WIDE = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
"""All bfloat16 numbers as float32, whose upper half they are; indexed by their bits."""


def widen(array: mx.array) -> npt.NDArray[np.float32]:
    """Converts bfloat16, which numpy lacks, to float32."""
    content = memoryview(array)  # type: ignore[arg-type]  # a buffer, but not typed as one
    halves = np.frombuffer(content.tobytes(), np.uint16)
    return WIDE[halves].reshape(array.shape)
