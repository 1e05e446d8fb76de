"""The K and V that go into one layer, and the attention over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.core.payload import Role, Table, get_table
from lockstep.reference.attention import Vector, compute_attention

Turn = Callable[[Sequence[Vector]], Sequence[Vector]]
"""From the keys of some tokens, of one head, to what they look like where they stand."""


class Tables:
    """The keys, values and queries of all tokens in one layer.

    limit: tags are below it. stored: the dtype in which the numbers are exact, or
    "coarse"; see `harness.core.payload`.
    """

    def __init__(
        self, config: Mapping[str, Any], limit: int, layer: int, stored: str
    ) -> None:
        self.layer, self.limit, self.stored_as = layer, limit, stored
        self.heads, self.key_dim = config["heads"], config["key_dim"]
        self.keys = self.get_table("key", self.key_dim)
        self.values = self.get_table("value", config["value_dim"])

    def get_table(self, role: Role, dim: int) -> Table:
        form = self.heads, dim, self.limit, self.stored_as
        return get_table(self.layer, role, *form)

    @cached_property
    def queries(self) -> Table:
        """The queries of the few passes that are put through attention."""
        return self.get_table("query", self.key_dim)

    def compute_row(
        self, tag: int, seen: Sequence[int], turn: Turn = lambda keys: keys
    ) -> npt.NDArray[np.float64]:
        """[heads, value_dim]: attention of one token over those with the tags seen, by
        the reference."""
        heads = zip(
            self.queries.get_vectors([tag])[0, :, 0].tolist(),
            self.keys.get_vectors(seen)[0].tolist(),
            self.values.get_vectors(seen)[0].tolist(),
            strict=True,
        )
        return np.array([compute_attention(q, turn(k), v) for q, k, v in heads])
