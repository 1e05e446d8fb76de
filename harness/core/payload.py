"""Encodes tags as vectors, and decodes vectors to tags.

Token n has tag n. Its key and value are a pure function of (tag, layer, head, dimension,
role), chosen so that the tag can be decoded from the vectors that a cache returns:

* Each number is close to an odd multiple of 1/16 between -15/16 and 15/16. The index of
  the multiple, from 0 to 15, is a digit. The distance from the multiple is below 1/32
  and uses the last bit that the storage dtype has for numbers below 1. The number is
  therefore exact in that dtype: moved data must be equal to the original, and a
  conversion to a narrower dtype is visible.
* The first `digits` dimensions are the digits of a code in base 16: code = (tag * 40503
  + salt) mod 16 ** digits. The multiplier is odd, so within one (layer, head, role) no
  two tags share a code, and the codes of neighbouring tags are far apart. The salt
  differs between layers, heads and roles, so a vector of another layer, head or role
  never decodes to the expected tag.
* Further dimensions hold digits of other products of the code, so that exchanged
  dimensions are visible.

With special numbers, vectors of at least `LEAST_SPECIAL` dimensions begin with up to four
digits. Their other dimensions hold NaN, infinities, zeros of both signs, and the smallest
and largest numbers of the dtype, which a cache must keep like any other number. A token
has other special numbers than its neighbours.

Storage that rounds, such as a quantized cache, gets the multiples without the distance.
If the storage rounds by more than half the spacing of the multiples, 4 or 2 different
numbers are used instead of 16, with the largest possible spacing: digits in base 4 or 2,
and 8 or 16 dimensions for a code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf, nan, sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lockstep.reference.attention import Vector, compute_attention

Role = Literal["key", "value", "query"]
ROLES: tuple[Role, ...] = ("key", "value", "query")

# The multiplier is odd, and close to 2 ** 16 divided by the golden ratio, which spreads
# the codes of neighbouring tags.
MULTIPLIER = 40503

# The factor that mixes a code into the low bits of its vector.
FINE = 2_654_435

MAX_DIGITS = 4

MAX_CODES = 16**MAX_DIGITS

F32 = npt.NDArray[np.float32]

LEVELS = (16, 4, 2)
"""The allowed counts of different stored numbers, evenly spaced from -LARGEST to
LARGEST."""

LARGEST = 15 / 16

Stored = str | int
"""The storage of numbers: the dtype in which they are exact or, if the storage rounds,
the count of different numbers, from LEVELS."""


def get_step(levels: int) -> float:
    """Returns the spacing of `levels` numbers from -LARGEST to LARGEST."""
    return 2 * LARGEST / (levels - 1)


def choose_levels(tolerance: float) -> int:
    """Returns how many different numbers to store, out of LEVELS: as many as remain
    distinguishable with errors of up to `tolerance`."""
    able = [levels for levels in LEVELS if 0 <= tolerance < get_step(levels) / 2]
    if not able:
        raise ValueError(f"tolerance {tolerance:g} is too large to distinguish numbers")
    return able[0]


def count_digits(levels: int = 16) -> int:
    """Returns the number of dimensions that a full code takes."""
    return 16 // (levels.bit_length() - 1)


def get_tag_limit(dim: int, levels: int = 16) -> int:
    """Returns the number of different tags that a vector of `dim` dimensions can hold."""
    return int(levels ** min(dim, count_digits(levels))) if dim else MAX_CODES


LEAST_SPECIAL = 4
"""The smallest dimension of vectors with special numbers."""


def count_ordinary(dim: int, special: bool) -> int:
    """Returns how many dimensions of a vector, from the first on, hold no special
    numbers."""
    return min(dim - 1, MAX_DIGITS) if special and dim >= LEAST_SPECIAL else dim


def get_salt(layer: int, head: int, role: Role) -> int:
    """Returns the salt, a number that depends on layer, head and role.

    The salts of all layers < 16, heads < 64 and roles are distinct modulo 16 ** digits if
    digits ≥ 3. With fewer digits, the salts of the first layers are distinct, but later
    salts repeat.
    """
    return 1 + (ROLES.index(role) + 3 * head + 192 * layer) * 5


# Maps each dtype to the largest b for which all multiples of 2 ** -b below 1 are exact.
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def compute_vectors(
    tags: npt.NDArray[np.int64],
    layer: int,
    head: int,
    role: Role,
    dim: int,
    stored: Stored,
    special: bool = False,
) -> F32:
    """Computes the vectors of `tags`, an array [tags, dim]."""
    levels = stored if isinstance(stored, int) else 16
    ordinary = count_ordinary(dim, special)
    modulus = get_tag_limit(ordinary, levels)
    code = (tags * MULTIPLIER + get_salt(layer, head, role)) % modulus  # [tags]
    columns = [get_digit(code, dimension, levels) for dimension in range(dim)]
    digits = np.stack(columns, axis=1) if columns else np.zeros((len(tags), 0))
    vectors = digits * get_step(levels) - LARGEST
    if isinstance(stored, str):
        vectors = vectors + compute_fine(code, dim, BITS[stored])
        numbers = np.array(list_special(stored))
        index = mix(code, dim)[:, ordinary:] % len(numbers)
        vectors[:, ordinary:] = numbers[index]
    return vectors.astype(np.float32)


def compute_fine(code: npt.NDArray[np.int64], dim: int, bits: int) -> Any:
    """Computes the distance of each number from the multiple of its digit, an array
    [tags, dim]. Each distance is an odd multiple of 2 ** -bits between -1/32 and 1/32."""
    spread = 1 << (bits - 5)
    return (2 * (mix(code, dim) % spread) + 1 - spread) * 2.0**-bits


def mix(code: npt.NDArray[np.int64], dim: int) -> npt.NDArray[np.int64]:
    """Computes a different integer for each code and dimension, an array [tags, dim]."""
    return code[:, None] * FINE + np.arange(dim) * MULTIPLIER


EXPONENTS = {"float32": (-126, 127), "float16": (-14, 15), "bfloat16": (-126, 127)}
"""The smallest and the largest exponent of normal numbers of each dtype."""


def list_special(dtype: str) -> Sequence[float]:
    """Lists the special numbers of a dtype."""
    (low, high), bits = EXPONENTS[dtype], BITS[dtype]
    smallest, largest = 2.0 ** (low - bits + 1), (2 - 2.0 ** (1 - bits)) * 2.0**high
    subnormal = smallest - 2.0**low  # the largest one, but negative
    return (nan, -0.0, smallest, inf, subnormal, 0.0, -inf, largest)


def are_same(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tells for each number whether it is the expected number. NaN is the same as NaN,
    whose other bits a conversion may change; 0 and -0 are not the same."""
    equal = (got == expected) & (np.signbit(got) == np.signbit(expected))
    same: npt.NDArray[np.bool_] = equal | (np.isnan(got) & np.isnan(expected))
    return same


def get_digit(
    code: npt.NDArray[np.int64], dimension: int, levels: int
) -> npt.NDArray[np.int64]:
    """Computes the digits of the codes in one dimension, in base `levels`."""
    turned, place = divmod(dimension, count_digits(levels))
    digit: npt.NDArray[np.int64] = code * (1 + 2 * turned) // levels**place % levels
    return digit


@dataclass(frozen=True, eq=False)
class Table:
    """The vectors of the tags 0 … limit - 1 for one (layer, role) and the first heads.

    Attributes:
        layer, role: see the module.
        vectors: a read-only array [1, heads, limit, dim].
        levels: see `LEVELS`.
        special: whether the vectors have special numbers, if they are long enough.
    """

    layer: int
    role: Role
    vectors: F32
    levels: int = 16
    special: bool = False

    @cached_property
    def dim(self) -> int:
        return int(self.vectors.shape[3])

    @cached_property
    def ordinary(self) -> int:
        """The number of dimensions without special numbers."""
        return count_ordinary(self.dim, self.special)

    @cached_property
    def heads(self) -> int:
        return int(self.vectors.shape[1])

    def read_tags(self, array: F32) -> npt.NDArray[np.int64]:
        """Decodes the tags from the first digits of the vectors of head 0. Does not check
        the other heads and dimensions.

        Args:
            array: [1, heads, tokens, dim]; the numbers may be infinite or NaN.

        Returns:
            An array [tokens] of tags in [0, limit). A vector that encodes no tag of the
            table decodes to `limit`.
        """
        digits = min(self.ordinary, count_digits(self.levels))
        modulus = self.levels**digits
        weights = np.array([self.levels**digit for digit in range(digits)])
        step = get_step(self.levels)
        with np.errstate(invalid="ignore", over="ignore"):
            spelled = np.rint((array[0, 0, :, :digits] + LARGEST) / step)
            code = spelled.astype(np.int64) @ weights  # of [tokens, digits]
        salt = get_salt(self.layer, 0, self.role)
        tags = (code - salt) * pow(MULTIPLIER, -1, modulus) % modulus
        known: npt.NDArray[np.int64] = np.minimum(tags, self.vectors.shape[2])
        return known

    def get_vectors(self, tags: npt.NDArray[np.int64] | Sequence[int]) -> F32:
        """Returns a copy of the vectors of `tags`, [1, heads, tokens, dim]. An unknown
        tag gets the last vector."""
        if isinstance(tags, range):
            return self.vectors[:, :, tags.start : tags.stop].copy()
        return self.vectors.take(tags, axis=2, mode="clip")

    def match(
        self, array: F32, tags: npt.NDArray[np.int64] | Sequence[int]
    ) -> npt.NDArray[np.bool_]:
        """Tells for each number of an array whether it is the number of the tag."""
        compare = are_same if self.ordinary < self.dim else np.equal  # np.equal is faster
        matches: npt.NDArray[np.bool_] = compare(array, self.get_vectors(tags))
        return matches

    @cached_property
    def spelled(self) -> Sequence[bytes]:
        """The vectors of each tag as bytes, see `split_tokens`."""
        return split_tokens(self.vectors)

    def spells(self, array: F32, tags: Sequence[Any]) -> bool:
        """Returns whether an array, [1, heads, tokens, dim], holds exactly the vectors of
        `tags`. Unknown tags match no vector."""
        spelled = self.spelled
        try:
            expected = b"".join(map(spelled.__getitem__, tags))
        except IndexError:  # an unknown tag
            expected = b"".join([spelled[tag] for tag in tags if tag < len(spelled)])
        by_token = array if array.shape[1] == 1 else array[0].swapaxes(0, 1)
        return bool(by_token.tobytes() == expected)

    @cached_property
    def known(self) -> Mapping[bytes, int]:
        """Maps the bytes of each token to its tag."""
        return {content: tag for tag, content in enumerate(self.spelled)}


def split_tokens(array: npt.NDArray[Any]) -> list[bytes]:
    """Returns the bytes of each token, of all heads. array: [1, heads, tokens, dim].

    Comparing small arrays by their bytes is faster than by their numbers: finding the
    tags in 16 columns of two heads takes 3 µs instead of 10. Equal numbers may have
    different bytes, so callers compare differing columns as numbers. Ordinary payload
    numbers are neither NaN nor 0, so for them different float32 bytes are different
    numbers.
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
    """Returns the dtype that holds the `size` bytes of one token."""
    return np.dtype((np.void, size))


@cache
def get_table(
    layer: int,
    role: Role,
    heads: int,
    dim: int,
    limit: int,
    stored: Stored = "float32",
    special: bool = False,
) -> Table:
    """Returns the table for tags below `limit`. Rounds `limit` up to a power of two, so
    that few tables are built."""
    levels = stored if isinstance(stored, int) else 16
    most = get_tag_limit(count_ordinary(dim, special), levels)
    limit = min(max(64, 1 << (limit - 1).bit_length()), most)
    return get_rounded_table(layer, role, heads, dim, limit, stored, special)


@cache
def get_rounded_table(
    layer: int,
    role: Role,
    heads: int,
    dim: int,
    limit: int,
    stored: Stored,
    special: bool,
) -> Table:
    tags = np.arange(limit, dtype=np.int64)
    form = dim, stored, special
    vectors = np.stack(
        [compute_vectors(tags, layer, head, role, *form) for head in range(heads)]
    )[None]
    vectors.flags.writeable = False
    levels = stored if isinstance(stored, int) else 16
    return Table(layer, role, vectors, levels, special)


STRIDED = 4
"""Arrays whose first tag is 1 modulo STRIDED are not contiguous."""


def lay_out(array: F32, tag: int) -> F32:
    """Returns an array [rows, heads, tokens, dim], often not contiguous, as in models: a
    part of a larger array with the heads of a token side by side.

    Args:
        array: the numbers.
        tag: the first tag in the array.
    """
    if tag % STRIDED != 1:
        return array
    rows, heads, tokens, dim = array.shape
    larger = np.full((rows, tokens, heads, dim + 2), np.nan, np.float32)
    view: F32 = larger.swapaxes(1, 2)[..., :dim]
    view[...] = array
    return view


def snap(array: npt.NDArray[Any], tolerance: float) -> F32:
    """Replaces each number by the payload number within `tolerance`, if there is one.
    Used for a backend whose storage rounds."""
    levels = choose_levels(tolerance)
    step = get_step(levels)
    with np.errstate(invalid="ignore"):  # padding may be NaN or infinite
        digits = np.clip(np.round((array + LARGEST) / step), 0, levels - 1)
        nearest = digits * step - LARGEST
        close = np.abs(array - nearest) <= tolerance
    return np.where(close, nearest, array).astype(np.float32)


MOST_HEADS = 4

Turn = Callable[[Sequence[Vector]], Sequence[Vector]]
"""Rotates the keys of the given tokens, of one head, to the positions of the tokens."""


class ExpectedPayloads:
    """The keys, values and queries of all tokens in one layer.

    Args:
        limit: the exclusive upper bound of the tags.
        stored: see `Stored`.
    """

    def __init__(
        self, config: Mapping[str, Any], limit: int, layer: int, stored: Stored
    ) -> None:
        self.layer, self.limit, self.stored_as = layer, limit, stored
        self.special = bool(config["special_numbers"]) and isinstance(stored, str)
        self.heads, self.key_dim = config["heads"], config["key_dim"]
        self.keys = self.get_table("key", self.key_dim)
        self.values = self.get_table("value", config["value_dim"])

    def get_table(self, role: Role, dim: int) -> Table:
        form = self.heads, dim, self.limit, self.stored_as, self.special
        return get_table(self.layer, role, *form)

    def name_keys(self) -> Mapping[bytes, Any]:
        """Returns a map from the bytes of each key to the name of its token."""
        return self.keys.known

    def get_key(self, name: Any) -> F32:
        """Returns the key of a token by its name, an array [heads, key_dim]."""
        return self.keys.get_vectors([name])[0, :, 0]

    def get_tolerance(self) -> float:
        """Returns the largest allowed error of a number."""
        return 0.0

    @cached_property
    def queries(self) -> Table:
        """The queries, made only when a pass computes attention."""
        return self.get_table("query", self.key_dim)

    def pick_heads(self, tag: int) -> slice:
        """Returns at most 4 heads for `compute_row`, which is slow; other tokens have
        other heads."""
        step = -(-self.heads // MOST_HEADS)
        return slice(tag % step, None, step)

    def compute_row(
        self,
        tag: int,
        seen: Sequence[int],
        turn: Turn = lambda keys: keys,
        chosen: slice = slice(None),
    ) -> npt.NDArray[np.float64]:
        """Computes the reference attention of token `tag` over the tokens `seen`, an
        array [heads, value_dim], of the chosen heads."""
        heads = zip(
            self.queries.get_vectors([tag])[0, chosen, 0].tolist(),
            self.keys.get_vectors(seen)[0, chosen].tolist(),
            self.values.get_vectors(seen)[0, chosen].tolist(),
            strict=True,
        )
        return np.array([compute_attention(q, turn(k), v) for q, k, v in heads])

    def estimate_row(self, tag: int, seen: Sequence[int]) -> npt.NDArray[np.float64]:
        """Computes the same as `compute_row` with numpy, a hundred times faster. The
        error is at most `get_estimate_error`."""
        query, keys, values = (
            table.get_vectors(tags)[0].astype(np.float64)
            for table, tags in (
                (self.queries, [tag]),
                (self.keys, seen),
                (self.values, seen),
            )
        )
        scores = (query * keys).sum(2) / sqrt(query.shape[2])  # [heads, tokens]
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        row: npt.NDArray[np.float64] = (weights[:, :, None] * values).sum(1)
        return row


# --- tolerances -------------------------------------------------------------------------


Margins = Mapping[str, float]
"""Maps the name of a tolerance, "attention", "keys" or "storage", to the largest error,
as a fraction of the tolerance."""


def merge_margins(*given: Margins) -> dict[str, float]:
    """Returns the largest error fraction of each tolerance in `given`."""
    names = dict.fromkeys(name for margins in given for name in margins)
    return {name: max(item.get(name, 0.0) for item in given) for name in names}


UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The unit roundoff of each storage dtype."""


def get_attention_tolerance(
    dtype: str, dim: int, tokens: int, storage: float = 0.0
) -> float:
    """Returns the largest allowed error of a number of softmax(q · k / sqrt(dim)) · v.

    All numbers of q, k and v are below 1. u is the unit roundoff of `dtype`. A score is a
    sum of `dim` products, so its error is at most (dim + 2) · u · sqrt(dim). The relative
    error of each weight is about twice the error of its score. The weights sum to 1, and
    the sum over `tokens` weights adds an error of (tokens + 2) · u. `storage` is the
    error of a stored number that a backend with inexact storage declares. This error
    enters a score `dim` times and the result once.
    """
    unit = UNIT[dtype]
    score = (dim + 2) * unit * sqrt(dim) + storage * sqrt(dim)
    return 2 * score + (tokens + 2) * unit + storage


def get_estimate_error(dim: int, tokens: int) -> float:
    """Returns the largest error of `estimate_row`, whose unit roundoff is 2**-53."""
    return get_attention_tolerance("float32", dim, tokens) * 2.0**-29


def get_key_tolerance(dtype: str, turns: int, distance: int) -> float:
    """Returns the largest allowed error of a number of a key that was rotated to other
    positions.

    A rotated pair of key numbers has a length of at most sqrt(2). When the pair is
    stored, the error is at most u (the unit roundoff of `dtype`) for one number and u / 2
    for the other. The length of this error is below 1.12 · u, and a later rotation may
    turn it in any direction. This error occurs once per rotation, and the last store adds
    u. The rotation is computed in float32: the error of the angle, a product of two
    rounded numbers, is at most 2 · u · `distance`; sine, cosine and the two products add
    a few u per rotation.

    Args:
        dtype: the storage dtype.
        turns: the number of rotations.
        distance: the sum of the distances of all rotations, in positions.
    """
    stored = (1.12 * turns + 1) * UNIT[dtype]
    computed = 2 * (2 * distance + 8 * turns) * UNIT["float32"]
    return stored + computed
