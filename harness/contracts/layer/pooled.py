"""Identifies the entries of pooled caches: means of K and V of several tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.system import Column, Reader
from lockstep.harness.core.payload import F32, UNIT, Table
from lockstep.reference.pooled import PooledCache
from lockstep.reference.token import Token

Near = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Means(Table):
    """The means of the vectors of several tokens, by the tag of the last token.

    Attributes:
        means: tag → [1, heads, 1, dim].
    """

    means: dict[int, Any] = field(default_factory=dict)

    def learn(self, tags: Sequence[int]) -> None:
        vectors = super().get_vectors(tags).astype(np.float64)
        self.means[tags[-1]] = vectors.mean(axis=2, keepdims=True)

    def get_vectors(self, tags: npt.NDArray[np.int64] | Sequence[int]) -> F32:
        none = self.vectors[:, :, :0]
        return np.concatenate([none, *(self.means[tag] for tag in tags)], axis=2)

    def list_runs(self, count: int) -> npt.NDArray[Any]:
        """Returns the means of `count` tokens with consecutive tags, by the first tag."""
        sums = np.cumsum(self.vectors, axis=2, dtype=np.float64)
        sums = np.pad(sums, ((0, 0), (0, 0), (1, 0), (0, 0)))
        return np.asarray((sums[:, :, count:] - sums[:, :, :-count]) / count)


class PooledReader(Reader):
    """Identifies the entries in returned K and V.

    A mean is computed with the precision of float32 or more, and rounded once to the
    dtype of K and V. An entry whose numbers are within these errors is named by the tag
    of its last token. Other entries are described.

    Attributes:
        allowed: the largest error of a number, all of which are below 1.
    """

    keys: Means
    values: Means

    def __init__(
        self, backend: Backend, config: Mapping[str, Any], limit: int, layer: int = 0
    ) -> None:
        super().__init__(replace(backend, tolerance=0.0), config, limit, layer)
        self.most: int = config["pool"] + config["overlap"]
        rounded = UNIT[self.dtype] + (self.most + 2) * UNIT["float32"]
        self.allowed: float = rounded + backend.tolerance

    def get_table(self, role: Any, dim: int) -> Table:
        table = super().get_table(role, dim)
        if role == "query":
            return table
        return Means(table.layer, table.role, table.vectors, table.levels)

    def get_tolerance(self) -> float:
        return self.allowed

    def expect(self, reference: PooledCache) -> list[Token]:
        """Learns the entries of the reference, and returns their names."""
        entries = reference.state()
        for entry in entries:
            if entry.tag not in self.keys.means:
                tags = [token.tag for token in reference.get_pooled(entry)]
                self.keys.learn(tags)
                self.values.learn(tags)
        return entries

    def read_floats(
        self, keys: F32, values: F32, likely: Sequence[Token]
    ) -> list[Column]:
        """Identifies each column; `likely` are the expected entries."""
        names = [token.tag for token in likely]
        if len(names) == keys.shape[2] and self.are_near(keys, values, names).all():
            return list[Column](names)
        known = list(dict.fromkeys([*names, *self.keys.means]))
        columns = list[Column]()
        for at in range(keys.shape[2]):
            column = keys[:, :, at : at + 1], values[:, :, at : at + 1]
            matches = np.flatnonzero(self.are_near(*column, known))
            columns.append(known[matches[0]] if len(matches) else self.describe(*column))
        return columns

    def are_near(self, keys: F32, values: F32, names: Sequence[int]) -> Near:
        """Tells for each entry whether its numbers are those of K and V."""
        tables = (keys, self.keys), (values, self.values)
        return self.is_close([(got, table.get_vectors(names)) for got, table in tables])

    def is_close(self, pairs: Sequence[tuple[F32, npt.NDArray[Any]]]) -> Near:
        with np.errstate(invalid="ignore"):  # padding may be infinite
            matches = [
                (np.abs(got - mean) <= self.allowed).all(axis=(0, 1, 3))
                for got, mean in pairs
            ]
        both: Near = matches[0] & matches[1]
        return both

    def describe(self, keys: F32, values: F32) -> str:
        """Describes an unknown entry: as the mean of consecutive tokens, if possible."""
        if np.isnan(keys).any() or np.isnan(values).any():
            return "NaN"
        for count in range(1, self.most + 1):
            runs = self.keys.list_runs(count), self.values.list_runs(count)
            pairs = zip((keys, values), runs, strict=True)
            matches = np.flatnonzero(self.is_close([*pairs]))
            if len(matches):
                tags = range(matches[0], matches[0] + count)
                noun = "tokens" if count > 1 else "token"
                return f"the mean of {noun} {', '.join(map(str, tags))}"
        return "an unknown entry"
