"""Quantized storage with a residual of full precision, and a mistake in it."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import Form, MakeBand, mistake
from lockstep.impl.shared.memory import Arrays

RESIDUAL = 4
"""Number of tokens that are kept unquantized; with one more, all of them are packed."""

STEPS = 127
"""Numbers in [-1, 1] are packed as integers in [-127, 127]. They are stored in the dtype
of K and V, which represents them exactly: this rounds, but saves no memory."""

ROUNDING = 0.01
"""Half a step, and the rounding to bfloat16 before and after."""


class QuantizedCache:
    """K and V of every token, the oldest ones packed.

    Args:
        residual: a full cache of ours for the other tokens; its position 0 follows the
            packed ones.
        make_band: of the framework.
    """

    def __init__(self, residual: Any, make_band: MakeBand) -> None:
        self.residual, self.make_band = residual, make_band
        self.packed: Arrays | None = None

    @property
    def count_packed(self) -> int:
        return 0 if self.packed is None else int(self.packed[0].shape[2])

    @property
    def offset(self) -> int:
        return self.count_packed + int(self.residual.offset)

    def make_mask(self, length: int, rows: int) -> Any:
        if length == rows == 1:
            return None
        return self.make_band(length, rows, self.offset, None, self.residual.mask)

    def update(self, keys: Any, values: Any) -> Arrays | None:
        self.residual.update(keys, values)
        if self.residual.offset > RESIDUAL:
            keys, values = self.residual.view()
            self.pack(((keys * STEPS).round(), (values * STEPS).round()))
            self.residual.free()
        return self.view()

    def pack(self, arrays: Arrays) -> None:
        """Appends rounded K and V to the packed ones."""
        if self.packed is not None:
            arrays = self.residual.memory.join([self.packed, arrays])
        self.packed = arrays

    def view(self) -> Arrays | None:
        """Returns K and V of all tokens; None if there are none."""
        residual: Arrays | None = self.residual.view()
        if self.packed is None:
            return residual
        keys, values = self.packed
        unpacked = keys / STEPS, values / STEPS
        if residual is None:
            return unpacked
        arrays: Arrays = self.residual.memory.join([unpacked, residual])
        return arrays

    def state(self) -> Arrays | None:
        return self.view()

    def size(self) -> int:
        return self.offset

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all if fewer; returns how many."""
        trimmed = min(count, self.offset)
        packed = min(self.count_packed, self.offset - trimmed)
        self.residual.trim(count)
        if self.packed is not None:
            keys, values = self.packed
            self.packed = (keys[:, :, :packed], values[:, :, :packed]) if packed else None
        return trimmed

    def free(self) -> None:
        self.residual.free()
        self.packed = None

    def clone(self) -> QuantizedCache:
        copied = QuantizedCache(self.residual.clone(), self.make_band)
        copied.packed = self.packed  # never written, only replaced
        return copied


QUANTIZED = Form(
    "quantized",
    "kv",
    QuantizedCache,
    operations=frozenset({"update", "state", "view", "size", "trim", "clone", "free"}),
    tolerance=ROUNDING,
)


@mistake("kv", 2, "transformers PR#48700", form=QUANTIZED)
def quantized_residual_crop(cache: QuantizedCache) -> None:
    """A trim removes tokens from the full-precision residual, but not from the packed
    tokens."""
    cache.trim = cache.residual.trim  # type: ignore[method-assign]
