"""Attention over what a pass returned, against the reference in double precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.arrays.reading import to_numpy
from lockstep.harness.contracts.system import judge_attention
from lockstep.harness.contracts.unified.model import Turns
from lockstep.harness.contracts.unified.reader import PositionReader
from lockstep.harness.core.payload import F32, get_attention_tolerance, get_key_tolerance
from lockstep.reference.attention import Vector
from lockstep.reference.causal import CausalCache
from lockstep.reference.rope import rotate

Positions = Mapping[int, int]
"""tag → position"""


@dataclass(frozen=True)
class View:
    """The arrays that one layer of a pass returned, of the part number `which`.

    Attributes:
        seen: of each column, whether some row sees it.
    """

    which: int
    reader: PositionReader
    keys: Array
    values: Array
    mask: Array
    seen: Sequence[bool]
    positions: Positions


class Attention:
    """Compares two rows of a pass. margin: the largest error so far, as a share of what
    is allowed."""

    def __init__(self, arrays: Arrays, config: Mapping[str, Any]) -> None:
        self.arrays, self.config = arrays, config
        self.margin = 0.0

    def verify(
        self,
        view: View,
        part: CausalCache,
        turns: Mapping[int, Turns],
        tags: Sequence[int],
    ) -> None:
        """Raises Broken("attention"). tags: of the rows, whose queries are theirs too."""
        reader, positions = view.reader, view.positions
        got = self.attend(view, reader.queries.get_vectors(tags))
        for row in sorted({0, len(tags) - 1}):
            seen = [token.tag for token in part.visible(row)]
            turn = partial(turn_all, [positions[tag] for tag in seen], reader.base)
            wanted = reader.compute_row(tags[row], seen, turn)
            allowed = self.get_tolerance(seen, turns)
            share = judge_attention(got[0, :, row], wanted, allowed, row, "get")
            self.margin = max(self.margin, share)

    def attend(self, view: View, queries: F32) -> npt.NDArray[Any]:
        """[1, heads, rows, value_dim], by the backend's framework."""
        arrays, dtype = self.arrays, self.config["dtype"]
        mask = to_numpy(arrays, view.mask, "the mask")
        mask = mask.reshape(-1, mask.shape[-1])[: queries.shape[2]]
        keys, values = view.keys, view.values
        if self.config["permuted_values"] or not all(view.seen):
            keys, values = self.get_seen_only(view)
        # Frameworks want a mask in the dtype of the queries.
        queries, mask = (
            arrays.from_numpy(np.ascontiguousarray(array, np.float32), dtype)
            for array in (queries, mask)
        )
        return to_numpy(arrays, arrays.attend(queries, keys, values, mask), "attention")

    def get_seen_only(self, view: View) -> Sequence[Array]:
        """K and V [1, heads, columns, dim] with zeros where no row sees: whatever stands
        there, an additive mask would let a NaN through."""
        arrays, where = self.arrays, np.array(view.seen)[:, None]
        keys = to_numpy(arrays, view.keys, "K of get")
        values = to_numpy(arrays, view.values, "V of get")
        if self.config["permuted_values"]:
            values = values.swapaxes(2, 3)
        return [
            arrays.from_numpy(np.where(where, array, np.float32(0)), self.config["dtype"])
            for array in (keys, values)
        ]

    def get_tolerance(self, seen: Sequence[int], turns: Mapping[int, Turns]) -> float:
        """That of attention, with keys that are off as far as they may be."""
        own = [turns[tag] for tag in seen if tag in turns]
        count = max((turn.count for turn in own), default=0)
        distance = max((turn.distance for turn in own), default=0)
        dtype, dim = self.config["dtype"], self.config["key_dim"]
        keys = get_key_tolerance(dtype, count, distance)
        return get_attention_tolerance(dtype, dim, len(seen), keys)


def turn_all(
    positions: Sequence[int], base: float | None, keys: Sequence[Vector]
) -> Sequence[Vector]:
    """The keys of one head, each turned to its position. base: None for no turning."""
    if base is None:
        return keys
    return [rotate(key, at, base) for key, at in zip(keys, positions, strict=True)]
