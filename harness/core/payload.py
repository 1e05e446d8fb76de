"""Tags as vectors, and vectors as tags.

Token n has tag n. Its key and value are a pure function of (tag, layer, head, dimension,
role), chosen so that the tag can be read back from what a cache returns:

* A number is near one of the sixteen odd multiples of 1/16 between -15/16 and 15/16: the
  multiple is a digit. What it is off by is below 1/32 and uses the last bit that the
  storage dtype has for numbers below 1. So it is exact in that dtype, data that is moved
  must come back equal, and a detour through a narrower dtype shows.
* The first `digits` dimensions spell a code in base 16; code = (tag * 40503 + salt) mod
  16 ** digits. The multiplier is odd, so within one (layer, head, role) no two tags share
  a code, and neighbouring tags look nothing alike. The salt tells layers, heads and roles
  apart: a vector in the wrong place never reads as the right one.
* Further dimensions hold digits of other products of the code, so that exchanged
  dimensions show.

Storage that rounds, such as a quantized cache, gets the multiples alone. Where it rounds
by more than half their distance, only 4 or 2 of them are stored, as far apart as can be:
base 4 or 2, and 8 or 16 dimensions for a code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lockstep.reference.attention import Vector, compute_attention

Role = Literal["key", "value", "query"]
ROLES: tuple[Role, ...] = ("key", "value", "query")

# Odd, and close to 2 ** 16 divided by the golden ratio, which spreads neighbours.
MULTIPLIER = 40503

# Mixes a code into the low bits of its vector.
FINE = 2_654_435

MAX_DIGITS = 4

MAX_CODES = 16**MAX_DIGITS

F32 = npt.NDArray[np.float32]

LEVELS = (16, 4, 2)
"""How many different numbers may be stored, all from -LARGEST to LARGEST."""

LARGEST = 15 / 16

Stored = str | int
"""How numbers are stored: the dtype in which they are exact, or, where storage rounds,
how many different ones there are: one of LEVELS."""


def get_step(levels: int) -> float:
    """The distance of two neighbours among so many numbers."""
    return 2 * LARGEST / (levels - 1)


def choose_levels(tolerance: float) -> int:
    """Returns how many numbers can be told apart that are off by up to `tolerance`."""
    able = [levels for levels in LEVELS if 0 <= tolerance < get_step(levels) / 2]
    if not able:
        raise ValueError(f"no numbers can be told apart that are off by {tolerance:g}")
    return able[0]


def count_digits(levels: int = 16) -> int:
    """The number of dimensions that spell a code, if there are so many."""
    return 16 // (levels.bit_length() - 1)


def get_tag_limit(dim: int, levels: int = 16) -> int:
    """The number of tags that a vector of `dim` dimensions can tell apart."""
    return int(levels ** min(dim, count_digits(levels))) if dim else MAX_CODES


def get_salt(layer: int, head: int, role: Role) -> int:
    """Distinct for all layers < 16, heads < 64 and roles, modulo any 16 ** digits with
    digits ≥ 3; with fewer digits the first few are."""
    return 1 + (ROLES.index(role) + 3 * head + 192 * layer) * 5


# dtype → b: all multiples of 2 ** -b below 1 are exact.
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def compute_vectors(
    tags: npt.NDArray[np.int64],
    layer: int,
    head: int,
    role: Role,
    dim: int,
    stored: Stored,
) -> F32:
    """The vectors of `tags`: [tags, dim]."""
    levels = stored if isinstance(stored, int) else 16
    modulus = get_tag_limit(dim, levels)
    code = (tags * MULTIPLIER + get_salt(layer, head, role)) % modulus  # [tags]
    columns = [get_digit(code, dimension, levels) for dimension in range(dim)]
    digits = np.stack(columns, axis=1) if columns else np.zeros((len(tags), 0))
    vectors = digits * get_step(levels) - LARGEST
    if isinstance(stored, str):
        vectors = vectors + compute_fine(code, dim, BITS[stored])
    return vectors.astype(np.float32)


def compute_fine(code: npt.NDArray[np.int64], dim: int, bits: int) -> Any:
    """The distance of each number from its digit: an odd multiple of 2 ** -bits between
    -1/32 and 1/32. [tags, dim]."""
    spread = 1 << (bits - 5)
    mixed = code[:, None] * FINE + np.arange(dim) * MULTIPLIER
    return (2 * (mixed % spread) + 1 - spread) * 2.0**-bits


def get_digit(
    code: npt.NDArray[np.int64], dimension: int, levels: int
) -> npt.NDArray[np.int64]:
    """The digit of `code` in one dimension, in base `levels`."""
    turned, place = divmod(dimension, count_digits(levels))
    digit: npt.NDArray[np.int64] = code * (1 + 2 * turned) // levels**place % levels
    return digit


@dataclass(frozen=True, eq=False)
class Table:
    """The vectors of the tags 0 … limit - 1 for one (layer, role) and some heads.

    vectors: [1, heads, limit, dim], read-only. levels: see `LEVELS`.
    """

    layer: int
    role: Role
    vectors: F32
    levels: int = 16

    @cached_property
    def dim(self) -> int:
        return int(self.vectors.shape[3])

    @cached_property
    def heads(self) -> int:
        return int(self.vectors.shape[1])

    def read_tags(self, array: F32) -> npt.NDArray[np.int64]:
        """The tags that the vectors of head 0 spell, whether or not the rest agrees.

        array: [1, heads, tokens, dim], finite or not; returns [tokens], each in
        [0, limit); a vector that spells no tag of the table reads as limit.
        """
        digits = min(self.dim, count_digits(self.levels))
        modulus = self.levels**digits
        weights = np.array([self.levels**place for place in range(digits)])
        step = get_step(self.levels)
        with np.errstate(invalid="ignore", over="ignore"):
            spelled = np.rint((array[0, 0, :, :digits] + LARGEST) / step)
            code = spelled.astype(np.int64) @ weights  # of [tokens, digits]
        salt = get_salt(self.layer, 0, self.role)
        tags = (code - salt) * pow(MULTIPLIER, -1, modulus) % modulus
        known: npt.NDArray[np.int64] = np.minimum(tags, self.vectors.shape[2])
        return known

    def get_vectors(self, tags: npt.NDArray[np.int64] | Sequence[int]) -> F32:
        """[1, heads, tokens, dim], a copy; an unknown tag gives the last vector."""
        if isinstance(tags, range):
            return self.vectors[:, :, tags.start : tags.stop].copy()
        return self.vectors.take(tags, axis=2, mode="clip")

    @cached_property
    def spelled(self) -> Sequence[bytes]:
        """The vectors of each tag as `split_tokens` has them."""
        return split_tokens(self.vectors)

    def spells(self, array: F32, tags: Sequence[Any]) -> bool:
        """Whether an array, [1, heads, tokens, dim], holds exactly these tokens. No array
        holds a token of an unknown tag."""
        spelled = self.spelled
        right = b"".join([spelled[tag] for tag in tags if tag < len(spelled)])
        by_token = array if array.shape[1] == 1 else array[0].swapaxes(0, 1)
        return bool(by_token.tobytes() == right)

    @cached_property
    def known(self) -> Mapping[bytes, int]:
        """Bytes of a token → its tag."""
        return {content: tag for tag, content in enumerate(self.spelled)}


def split_tokens(array: npt.NDArray[Any]) -> list[bytes]:
    """Returns the numbers of each token, of all heads. array: [1, heads, tokens, dim].

    Small arrays are compared by their bytes, which is faster: finding the tags in 16
    columns of two heads takes 3 µs instead of 10. Equal numbers may have different bytes,
    so differing columns are compared as numbers. But payload numbers are neither NaN nor
    0: in float32, different bytes are different numbers.
    """
    _, heads, tokens, dim = array.shape
    size = array.itemsize * heads * dim
    if not size or not tokens:
        return [b""] * tokens
    content = (array if heads == 1 else array[0].swapaxes(0, 1)).tobytes()
    split: list[bytes] = np.frombuffer(content, get_token_dtype(size)).tolist()
    return split


@cache
def get_token_dtype(size: int) -> np.dtype[np.void]:
    """The dtype of one token's numbers, `size` bytes."""
    return np.dtype((np.void, size))


@cache
def get_table(
    layer: int, role: Role, heads: int, dim: int, limit: int, stored: Stored = "float32"
) -> Table:
    """The table for tags below `limit`, which is rounded up to a power of two so that
    few tables are ever built."""
    levels = stored if isinstance(stored, int) else 16
    limit = min(max(64, 1 << (limit - 1).bit_length()), get_tag_limit(dim, levels))
    return get_rounded_table(layer, role, heads, dim, limit, stored)


@cache
def get_rounded_table(
    layer: int, role: Role, heads: int, dim: int, limit: int, stored: Stored
) -> Table:
    tags = np.arange(limit, dtype=np.int64)
    vectors = np.stack(
        [compute_vectors(tags, layer, head, role, dim, stored) for head in range(heads)]
    )[None]
    vectors.flags.writeable = False
    return Table(layer, role, vectors, stored if isinstance(stored, int) else 16)


def snap(array: npt.NDArray[Any], tolerance: float) -> F32:
    """Moves each number to the payload number within `tolerance`, if there is one. For
    backends that declare inexact storage."""
    levels = choose_levels(tolerance)
    step = get_step(levels)
    with np.errstate(invalid="ignore"):  # padding may be neither number nor finite
        digits = np.clip(np.round((array + LARGEST) / step), 0, levels - 1)
        nearest = digits * step - LARGEST
        close = np.abs(array - nearest) <= tolerance
    return np.where(close, nearest, array).astype(np.float32)


Turn = Callable[[Sequence[Vector]], Sequence[Vector]]
"""From the keys of some tokens, of one head, to what they look like where they stand."""


class ExpectedPayloads:
    """The keys, values and queries of all tokens in one layer.

    limit: tags are below it. stored: see `Stored`.
    """

    def __init__(
        self, config: Mapping[str, Any], limit: int, layer: int, stored: Stored
    ) -> None:
        self.layer, self.limit, self.stored_as = layer, limit, stored
        self.heads, self.key_dim = config["heads"], config["key_dim"]
        self.keys = self.get_table("key", self.key_dim)
        self.values = self.get_table("value", config["value_dim"])

    def get_table(self, role: Role, dim: int) -> Table:
        form = self.heads, dim, self.limit, self.stored_as
        return get_table(self.layer, role, *form)

    def name_keys(self) -> Mapping[bytes, Any]:
        """Bytes of a key → the name of its token."""
        return self.keys.known

    def get_key(self, name: Any) -> F32:
        """The key of a token, by its name: [heads, key_dim]."""
        return self.keys.get_vectors([name])[0, :, 0]

    def get_tolerance(self) -> float:
        """The largest error of a number that is right."""
        return 0.0

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


# --- tolerances -------------------------------------------------------------------------


Margins = Mapping[str, float]
"""What has a tolerance, "attention", "keys" or "storage" → the largest error, as a share
of that tolerance."""


def merge_margins(*given: Margins) -> dict[str, float]:
    """The largest share of each tolerance."""
    names = dict.fromkeys(name for margins in given for name in margins)
    return {name: max(each.get(name, 0.0) for each in given) for name in names}


UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The unit roundoff of each storage dtype."""


def get_attention_tolerance(
    dtype: str, dim: int, tokens: int, storage: float = 0.0
) -> float:
    """The largest error of one number of softmax(q · k / sqrt(dim)) · v.

    All numbers of q, k and v are below 1. A score is a sum of `dim` products, so its
    error is at most (dim + 2) · u · sqrt(dim); the relative error of each weight is about
    twice that of its score; weights sum to 1, and summing `tokens` of them adds
    (tokens + 2) · u. `storage` is the error of a stored number that a backend with
    inexact storage declares: it enters a score `dim` times and the result once.
    """
    unit = UNIT[dtype]
    score = (dim + 2) * unit * sqrt(dim) + storage * sqrt(dim)
    return 2 * score + (tokens + 2) * unit + storage


def get_key_tolerance(dtype: str, turns: int, distance: int) -> float:
    """The largest error of one number of a key that was rotated to other positions.

    turns: how often; distance: by how many positions in all. No pair of a key is longer
    than sqrt(2), so when it is stored one number is off by u of the dtype at most, and
    the other by u / 2: together less than 1.12 · u, in any direction once it is turned.
    That happens once for each turn, and u is added by the last store. Turning itself is
    computed in float32: the angle is off by 2 · u of `distance` at most (a product of two
    rounded numbers), sine, cosine and the two products by a few u each turn.
    """
    stored = (1.12 * turns + 1) * UNIT[dtype]
    computed = 2 * (2 * distance + 8 * turns) * UNIT["float32"]
    return stored + computed
