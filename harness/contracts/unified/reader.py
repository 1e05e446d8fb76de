"""Makes K and V of a unified cache, with keys rotated to their positions; reads returned
columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.contracts.naming import (
    MIXED,
    NEAR_TOKEN,
    Drift,
    compare_numbers,
    format_drift,
    measure_errors,
    name_vectors,
)
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.system import (
    Column,
    PairReader,
    judge_attention,
    split_pair,
    to_numpy,
)
from lockstep.harness.contracts.unified.model import NEVER, Turns
from lockstep.harness.core.payload import (
    F32,
    Table,
    are_same,
    get_attention_tolerance,
    get_key_tolerance,
    get_table,
    lay_out,
    split_tokens,
)
from lockstep.reference.attention import Vector
from lockstep.reference.causal import CausalCache
from lockstep.reference.rope import compute_angle, list_axes, rotate

# --- rotated keys: angles from a table, numbers rounded to a dtype ----------------------


F64 = npt.NDArray[np.float64]


@cache
def get_halves(table: Table) -> F64:
    """Returns two tables of vectors: (x, y) and (-y, x).

    A rotated vector is (x, y) · cos + (-y, x) · sin.

    Returns:
        float64 [2, heads, tags, dim].
    """
    vectors = table.vectors[0].astype(np.float64)
    x, y = np.split(vectors, 2, axis=-1)
    return np.stack([vectors, np.concatenate([-y, x], axis=-1)])


def get_turns(positions: F64, dim: int, base: int) -> F64:
    """Returns the cosine and the sine of each pair's angle at each position.

    Args:
        positions: [positions, pairs].
        dim: the length of a key.
        base: the base of the rotation.

    Returns:
        float64 [2, positions, dim]; both halves of the last axis are equal.
    """
    rates = get_rates(dim, base)
    angles = np.tile(positions * rates, 2)  # [positions, dim]
    return np.stack([np.cos(angles), np.sin(angles)])


@cache
def get_rates(dim: int, base: int) -> F64:
    """Returns the angle of each pair of numbers at position 1, float64 [dim / 2]."""
    return np.array([compute_angle(1, pair, dim, base) for pair in range(dim // 2)])


def round_to(array: F32, dtype: str) -> F32:
    """Rounds each number to the nearest number of the dtype, ties to even."""
    if dtype == "float16":
        return array.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = array.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32)
    return array


# --- the reader -------------------------------------------------------------------------


TokenAt = tuple[int, int]
"""(position, tag)"""

UNSEEN = "what no row sees"

AT_ONCE = 256
"""The number of keys computed at a time, to limit memory in double precision."""


class PositionReader(PairReader):
    """Makes the K and V of one layer of one part, and reads returned K and V.

    Args:
        layer: the number of the layer, counted over all parts; it selects the payloads.
        base: the base of the rotation; None if keys do not depend on positions.
        offsets: tag → how far y and x of a token of an image are from its position. A
            move does not change them.

    Attributes:
        spread: [tags, pairs], how far the coordinate of each pair is from the
            position.
        stored: (position, tag) → the bytes of the key.
        accepted: the bytes of rotated keys that were within tolerance.
        margin: the largest error of a rotated key, divided by its tolerance.
        positions: tag → position, if known at the last read.
        turned: tag → the rotations of the key before the last read.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        limit: int,
        layer: int,
        base: int | None,
        offsets: Mapping[int, tuple[int, int]],
    ) -> None:
        super().__init__(backend, config, limit, layer, config["permuted_values"])
        if base is not None:  # a rotation computes with all numbers
            form = self.heads, self.key_dim, limit, self.stored_as
            self.keys = get_table(layer, "key", *form)
        self.base, self.offsets, self.sections = base, offsets, config["sections"] or ()
        axes = list_axes(self.sections, self.key_dim // 2)
        self.spread = np.zeros((limit, len(axes)))
        for tag, (y, x) in offsets.items():
            self.spread[tag] = np.take((0, y, x), axes)
        self.stored: dict[TokenAt, bytes] = {}
        self.accepted: dict[tuple[TokenAt, Turns], bytes] = {}
        self.margin = 0.0
        self.positions: Mapping[int, int] = {}
        self.turned: Mapping[int, Turns] = {}

    def name_keys(self) -> Mapping[bytes, TokenAt]:
        return {content: name for name, content in self.stored.items()}

    def get_key(self, name: TokenAt) -> F32:
        position, tag = name
        return self.store(self.compute_keys([tag], [position]))[0, :, 0]

    def get_tolerance(self) -> float:
        """Returns the tolerance of the keys that were rotated before the last read."""
        return max(map(self.allow, self.turned), default=0.0)

    def allow(self, tag: int) -> float:
        """Returns the tolerance of a token's key; 0 if it was never rotated."""
        count, distance = self.turned.get(tag, NEVER)
        return get_key_tolerance(self.dtype, count, distance) if count else 0.0

    # --- making K and V -----------------------------------------------------------------

    def learn(self, places: Sequence[TokenAt]) -> None:
        """Computes and stores the keys of all given (position, tag) pairs in one call.

        One call for the 40 keys of a whole program takes twice as long as a call for the
        keys of one pass with three rows. A program may have a dozen passes.
        """
        for begin in range(0, len(places), AT_ONCE):
            chunk = places[begin : begin + AT_ONCE]
            positions, tags = zip(*chunk, strict=True)
            keys = self.store(self.compute_keys(tags, positions))
            self.stored.update(zip(chunk, split_tokens(keys), strict=True))

    def feed(self, tags: Sequence[int], positions: Sequence[int]) -> tuple[Array, Array]:
        """Makes framework arrays K and V of the tags, with each key rotated to its
        position.

        Returns:
            K [1, heads, rows, key_dim] and V.
        """
        keys, values = (
            self.arrays.from_numpy(lay_out(array, tags[0] if tags else 0), self.dtype)
            for array in self.make(tags, positions)
        )
        return keys, values

    def make(self, tags: Sequence[int], positions: Sequence[int]) -> tuple[F32, F32]:
        """Makes K and V of the tags as float32, with each key rotated to its position."""
        places = list(zip(positions, tags, strict=True))
        self.learn([name for name in places if name not in self.stored])
        # A copy: the receiver may keep the array, and write to it.
        content = bytearray().join(map(self.stored.__getitem__, places))
        shape = len(places), self.keys.heads, self.keys.dim
        keys = np.ndarray(shape, np.float32, content).swapaxes(0, 1)[None]
        return np.ascontiguousarray(keys), self.values.get_vectors(tags)

    def compute_keys(self, tags: Sequence[int], positions: Sequence[int]) -> F64:
        """Computes rotated keys, float64 [1, heads, tokens, key_dim]."""
        if self.base is None:
            return self.keys.get_vectors(tags).astype(np.float64)
        halves = get_halves(self.keys).take(tags, axis=2, mode="clip")
        at = self.spread.take(tags, axis=0, mode="clip") + np.array(positions)[:, None]
        turned = halves * get_turns(at, self.keys.dim, self.base)[:, None]
        return turned[:1] + turned[1:]  # (x cos - y sin, y cos + x sin)

    def store(self, keys: F64) -> F32:
        """Rounds each number of the keys to the nearest number of the dtype."""
        return round_to(keys.astype(np.float32), self.dtype)

    # --- reading K and V ----------------------------------------------------------------

    def read(
        self,
        pair: Any,
        positions: Mapping[int, int],
        turns: Mapping[int, Turns],
        name: str,
        seen: Sequence[bool] | None = None,
    ) -> list[Column]:
        """Identifies each column of (K, V): as (position, tag), or by a description.

        Args:
            pair: (K, V).
            positions: tag → position, if known.
            turns: tag → the rotations of the token's key, for rotated keys.
            name: the name of the arrays in messages.
            seen: for each column, whether some row sees it; None to read all columns.
                Unseen columns may have any content.
        """
        floats = self.check_forms(*split_pair(pair, name), name)
        return self.read_floats(*floats, positions, turns, seen)

    def read_floats(
        self,
        keys: F32,
        values: F32,
        positions: Mapping[int, int],
        turns: Mapping[int, Turns],
        seen: Sequence[bool] | None = None,
    ) -> list[Column]:
        """Reads K and V of the right shape.

        First compares bytes, which is fast. Then compares the numbers of the columns
        whose bytes differ from the stored keys.
        """
        self.positions, self.turned = positions, turns
        if keys.dtype != np.float32 or values.dtype != np.float32:
            return self.look(keys, values, seen)
        spelled, get_position = split_tokens(keys), positions.get
        owners: list[Any] = list(map(self.values.known.get, split_tokens(values)))
        columns: list[Any] = [(get_position(tag, 0), tag) for tag in owners]
        matches = list(map(self.stored.get, columns))
        if matches == spelled:
            return columns
        doubtful = []
        for at, key in enumerate(spelled):
            if owners[at] is None:
                columns[at] = UNSEEN
                if seen is None or seen[at]:
                    doubtful.append(at)
            elif matches[at] != key and not self.was_accepted(columns[at], key):
                doubtful.append(at)
        if doubtful:
            chunk = keys[:, :, doubtful], values[:, :, doubtful]
            some_seen = None if seen is None else [seen[at] for at in doubtful]
            for at, column in zip(doubtful, self.look(*chunk, some_seen), strict=True):
                columns[at] = column
                if isinstance(column, tuple):  # within tolerance
                    state = column, self.turned.get(column[1], NEVER)
                    self.accepted[state] = spelled[at]
        return columns

    def was_accepted(self, name: TokenAt, key: bytes) -> bool:
        """Tells whether a key with the same rotations was within tolerance before."""
        return self.accepted.get((name, self.turned.get(name[1], NEVER))) == key

    def look(self, keys: F32, values: F32, seen: Sequence[bool] | None) -> list[Column]:
        """Identifies columns by comparing their numbers; this takes longer than
        comparing bytes, but allows a tolerance."""
        if keys.shape[2] == 0:
            return []
        tags: list[int] = self.values.read_tags(values).tolist()
        places = [self.positions.get(tag, 0) for tag in tags]
        matches = self.values.match(values, tags).all((0, 1, 3))
        matches &= self.match_keys(keys, tags, places)
        columns: list[Column] = list(zip(places, tags, strict=True))
        for column in np.flatnonzero(~matches).tolist():
            pair = keys[:, :, column : column + 1], values[:, :, column : column + 1]
            is_seen = seen is None or seen[column]
            columns[column] = self.name_column(*pair) if is_seen else UNSEEN
        return columns

    def match_keys(
        self, keys: F32, tags: Sequence[int], positions: Sequence[int]
    ) -> npt.NDArray[np.bool_]:
        """Tells for each column whether it holds the key of its tag at its position.

        The key must be exact, or within tolerance if it was rotated since it was stored.
        """
        ideal = self.compute_keys(tags, positions)
        same: Any = are_same(keys, self.store(ideal))
        matches: npt.NDArray[np.bool_] = same.all((0, 1, 3))
        for column in np.flatnonzero(~matches).tolist():
            if allowed := self.allow(tags[column]):
                off = float(np.abs(keys[:, :, column] - ideal[:, :, column]).max())
                if off <= allowed:
                    matches[column] = True
                    self.margin = max(self.margin, off / allowed)
        return matches

    def name_column(self, key: F32, value: F32) -> Column:
        """Describes a wrong column; key and value have the shape [1, heads, 1, dim]."""
        owner = name_vectors(value, self.values)
        is_nan = np.isnan(key[..., : self.keys.ordinary]).any()
        if isinstance(owner, Drift):
            return f"{format_drift('V', owner)}, allowed 0"
        if not isinstance(owner, int):
            return "NaN" if is_nan and owner == "NaN" else f"(value: {owner})"
        if not is_nan:
            keys = np.repeat(key, SEARCHED, axis=2)
            matches = self.match_keys(keys, [owner] * SEARCHED, range(SEARCHED))
            if matches.any():
                return int(matches.argmax()), owner
            if drift := self.find_drift(key, owner):
                return drift
        return f"{MIXED} no token at any position, but value of token {owner}"

    def find_drift(self, key: F32, tag: int) -> str | None:
        """Describes a key that is close to the token's key at its position.

        Returns None if the key is not close, or if the position is unknown.
        """
        if tag not in self.positions:
            return None
        position = self.positions[tag]
        ideal = self.compute_keys([tag], [position])
        ordinary = slice(self.keys.ordinary)
        if np.abs(key[..., ordinary] - ideal[..., ordinary]).max() >= NEAR_TOKEN:
            return None
        off = float(measure_errors(key, ideal).max())
        drift = Drift(tag, off, compare_numbers(key, ideal.astype(np.float32), 1))
        count = self.turned.get(tag, NEVER).times
        times = f", turned {count} times" if count else ""
        return (
            f"{format_drift('K', drift)}, allowed {self.allow(tag):.2g}"
            f" (at position {position}{times})"
        )


SEARCHED = 256
"""The number of positions that are searched for a key at the wrong position."""


# --- attention over what a pass returned ------------------------------------------------


Positions = Mapping[int, int]
"""tag → position"""


@dataclass(frozen=True)
class View:
    """The arrays that one layer of a pass returned.

    Attributes:
        which: the number of the part.
        seen: for each column, whether some row sees the column.
    """

    which: int
    reader: PositionReader
    keys: Array
    values: Array
    mask: Array
    seen: Sequence[bool]
    positions: Positions


class Attention:
    """Compares the attention of two rows of a pass with the reference.

    Attributes:
        margin: the largest error so far, divided by the allowed error.
    """

    def __init__(self, arrays: Arrays, config: Config) -> None:
        self.arrays, self.config = arrays, config
        self.margin = 0.0

    def verify(
        self,
        view: View,
        cache: CausalCache,
        turns: Mapping[int, Turns],
        tags: Sequence[int],
    ) -> None:
        """Compares the attention of the first and the last row of a pass.

        Args:
            view: the arrays that one layer returned.
            cache: the reference of the part.
            turns: tag → the rotations of the token's key.
            tags: the tags of the rows; they also select the queries.

        Raises:
            Broken: "attention": an error exceeds the tolerance.
        """
        reader, positions = view.reader, view.positions
        got = self.attend(view, reader.queries.get_vectors(tags))
        for row in sorted({0, len(tags) - 1}):
            seen = [token.tag for token in cache.visible(row)]
            places = [(positions[tag], reader.offsets.get(tag, (0, 0))) for tag in seen]
            turn = partial(turn_all, places, reader.base, reader.sections)
            heads = reader.pick_heads(tags[row])
            wanted = reader.compute_row(tags[row], seen, turn, heads)
            allowed = self.get_tolerance(seen, turns)
            share = judge_attention(got[0, heads, row], wanted, allowed, row, "get")
            self.margin = max(self.margin, share)

    def attend(self, view: View, queries: F32) -> npt.NDArray[Any]:
        """Returns the framework's attention, [1, heads, rows, value_dim]."""
        arrays, dtype = self.arrays, self.config["dtype"]
        mask = to_numpy(arrays, view.mask, "the mask")
        mask = np.atleast_2d(mask.reshape(mask.shape[-2:]))[: queries.shape[2]]
        keys, values = view.keys, view.values
        if self.config["permuted_values"] or not all(view.seen):
            keys, values = self.get_seen_only(view)
        # Frameworks require a mask in the dtype of the queries.
        queries, mask = (
            arrays.from_numpy(np.ascontiguousarray(array, np.float32), dtype)
            for array in (queries, mask)
        )
        return to_numpy(arrays, arrays.attend(queries, keys, values, mask), "attention")

    def get_seen_only(self, view: View) -> Sequence[Array]:
        """Returns K and V [1, heads, columns, dim] with zeros in the columns that no row
        sees.

        With an additive mask, a NaN in such a column would reach the result.
        """
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
        """Returns the tolerance of attention, derived from the largest error of a rotated
        key."""
        counts, distances = zip(
            NEVER, *(turns.get(tag, NEVER) for tag in seen), strict=True
        )
        dtype, dim = self.config["dtype"], self.config["key_dim"]
        keys = get_key_tolerance(dtype, max(counts), max(distances))
        return get_attention_tolerance(dtype, dim, len(seen), keys)


def turn_all(
    places: Sequence[tuple[int, tuple[int, int]]],
    base: float | None,
    sections: Sequence[int],
    keys: Sequence[Vector],
) -> Sequence[Vector]:
    """Rotates each key of one head to its position, unless `base` is None.

    Args:
        places: for each key, its position, and how far y and x are from it.
        base, sections: see `lockstep.reference.rope.rotate`.
        keys: the keys.
    """
    if base is None:
        return keys
    return [
        rotate(key, (t, t + y, t + x), base, sections)
        for key, (t, (y, x)) in zip(keys, places, strict=True)
    ]
