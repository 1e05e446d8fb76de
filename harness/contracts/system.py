"""Runs operations on a backend: reads its arrays as tokens and its masks as rows, and
watches arrays.

A backend answers with arrays. `Reader` identifies the token in each column, and
`get_rows` lists the columns that each row sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Alignment, Backend, Kind
from lockstep.harness.backends.interface import Array, Arrays, Mask
from lockstep.harness.contracts.answers import ask_backend
from lockstep.harness.contracts.naming import (
    DRIFTED,
    MIXED,
    NO_TOKEN,
    UNSTORED,
    Drift,
    compare_numbers,
    format_drift,
    format_vectors,
    measure_drift,
    name_drift,
    name_vectors,
)
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.watch import ArrayWatch
from lockstep.harness.core.errors import Broken, format_error
from lockstep.harness.core.payload import (
    F32,
    ExpectedPayloads,
    Margins,
    Table,
    choose_levels,
    get_attention_tolerance,
    get_estimate_error,
    lay_out,
    snap,
    split_tokens,
)
from lockstep.reference.token import Token

Column = int | str | tuple[int, int]
"""The content of one column of K and V: a tag, (position, tag) if the caller chooses
positions, or a description of any other content."""


# --- K and V as tokens ------------------------------------------------------------------


class PairReader(ExpectedPayloads):
    """Checks shapes and dtypes of K and V of one layer.

    Args:
        backend: the backend that makes the arrays.
        config: a complete config.
        limit: the exclusive upper bound of tags.
        layer: the layer number; each layer has different payloads.
        permuted: whether the columns of V are its last axis.
        tolerance: the largest allowed change of a stored number.
    """

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any],
        limit: int,
        layer: int,
        permuted: bool = False,
        tolerance: float = 0.0,
    ) -> None:
        self.arrays, self.permuted, self.tolerance = backend.arrays, permuted, tolerance
        self.dtype: str = config["dtype"]
        stored = choose_levels(tolerance) if tolerance else self.dtype
        super().__init__(config, limit, layer, stored)

    def get_tolerance(self) -> float:
        return self.tolerance

    def check_forms(
        self, keys: Array, values: Array, name: str, rows: int = 1
    ) -> tuple[F32, F32]:
        """Returns K and V as [rows, heads, columns, dim] with equal column counts.

        Args:
            keys: K as an array of the framework.
            values: V as an array of the framework.
            name: the operation that returned the arrays.
            rows: the number of rows of the batch.

        Raises:
            Broken: K or V has a wrong shape or dtype, or their column counts differ.
        """
        keys = self.get_floats(keys, self.keys, f"K of {name}", rows)
        values = self.get_floats(values, self.values, f"V of {name}", rows, self.permuted)
        width, value_width = keys.shape[2], values.shape[2]
        if width != value_width:
            raise Broken(
                "malformed",
                f"{name} returned K with {width} columns, but V with {value_width}",
            )
        return keys, values

    def get_floats(
        self, array: Array, table: Table, name: str, rows: int, permuted: bool = False
    ) -> F32:
        """Returns the array as float32 of shape [rows, heads, columns, dim]."""
        original = floats = to_numpy(self.arrays, array, name)
        if permuted and floats.ndim == 4:
            floats = floats.swapaxes(2, 3)
        if (*floats.shape[:2], *floats.shape[3:]) != (rows, table.heads, table.dim):
            form = f"{table.dim}, columns" if permuted else f"columns, {table.dim}"
            raise Broken(
                "malformed",
                f"{name} has shape {list(original.shape)},"
                f" not [{rows}, {table.heads}, {form}]",
            )
        dtype = self.arrays.dtype(array)
        if dtype != self.dtype:
            raise Broken("malformed", f"{name} has dtype {dtype}, not {self.dtype}")
        return snap(floats, self.tolerance) if self.tolerance else floats


class Reader(PairReader):
    """Makes K and V for one layer, and identifies the tokens in returned K and V.

    Attributes:
        margin: the largest error of a stored number so far, divided by the tolerance.
        attention: the largest error of attention so far, divided by its tolerance.
    """

    def __init__(
        self, backend: Backend, config: Mapping[str, Any], limit: int, layer: int = 0
    ) -> None:
        super().__init__(backend, config, limit, layer, tolerance=backend.tolerance)
        self.margin = self.attention = 0.0

    def judge(
        self,
        got: F32,
        tag: int,
        seen: Sequence[int],
        row: int,
        name: str,
        explain: Callable[[], str] = str,
    ) -> None:
        """Compares one row of attention with the double-precision result.

        The reference computes this result in plain Python, which takes seconds for
        thousands of tokens. Therefore, an estimate comes first; the reference runs only
        if the estimate does not show that the row is right. See `judge_attention`.

        Args:
            got: the backend framework's result, [heads, value_dim].
            tag: the tag of the query's token.
            seen: the tags of the tokens that the query attends to.
            row: the row number.
            name: the operation that returned the K and V.
            explain: see `judge_attention`.
        """
        form = self.dtype, self.keys.dim, len(seen), self.get_tolerance()
        allowed = get_attention_tolerance(*form)
        wanted = self.estimate_row(tag, seen)
        error = get_estimate_error(self.keys.dim, len(seen))
        if not (np.abs(got - wanted) <= allowed - error).all():  # or NaN
            wanted = self.compute_row(tag, seen)
        used = judge_attention(got, wanted, allowed, row, name, explain)
        self.attention = max(self.attention, used)

    def expect(self, reference: Any) -> Sequence[Token]:
        """Returns the tokens that a cache may return, in order."""
        tokens: Sequence[Token] = reference.tokens
        return tokens

    def feed(self, tags: Sequence[int]) -> tuple[Array, Array]:
        """Makes K [1, heads, tags, key_dim] and V [1, heads, tags, value_dim] of tags."""
        keys, values = (
            self.arrays.from_numpy(
                lay_out(table.get_vectors(tags), tags[0] if tags else 0), self.dtype
            )
            for table in (self.keys, self.values)
        )
        return keys, values

    def read(self, pair: Any, name: str, likely: Sequence[Token] = ()) -> list[Column]:
        """Identifies the token in each column of a returned (K, V).

        Args:
            pair: the returned value.
            name: the operation that returned the value.
            likely: the expected tokens of the last columns, in order; a comparison with
                these tokens is faster than identifying each column.
        """
        keys, values = self.check_forms(*split_pair(pair, name), name)
        columns = self.read_floats(keys, values, likely)
        if self.tolerance:
            self.note_drift(pair, columns)
        return columns

    def note_drift(self, pair: Sequence[Array], columns: Sequence[Column]) -> None:
        """Updates `margin` with the errors of numbers in columns that contain tokens."""
        tags_held = {at: tag for at, tag in enumerate(columns) if isinstance(tag, int)}
        for array, table in zip(pair, (self.keys, self.values), strict=True):
            floats = self.arrays.to_numpy(array)[:, :, list(tags_held)]
            off = np.abs(floats - table.get_vectors(list(tags_held.values()))).max(
                initial=0
            )
            self.margin = max(self.margin, float(off) / self.tolerance)

    def read_floats(
        self, keys: F32, values: F32, likely: Sequence[Token]
    ) -> list[Column]:
        """Identifies the token in each column of K and V, whose shapes are correct."""
        width = keys.shape[2]
        if 0 < width <= len(likely):
            guess: list[Column] = [token.tag for token in likely[-width:]]
            if self.keys.spells(keys, guess) and self.values.spells(values, guess):
                return guess
        tags_known = self.keys.known
        spelled: list[Any] = list(map(tags_known.get, split_tokens(keys)))
        if None not in spelled and self.values.spells(values, spelled):
            return spelled
        tags = self.keys.read_tags(keys)
        right_keys = self.keys.match(keys, tags)
        right_values = self.values.match(values, tags)
        columns: list[Column] = tags.tolist()
        if right_keys.all() and right_values.all():
            return columns
        is_right = right_keys.all((0, 1, 3)) & right_values.all((0, 1, 3))  # [tokens]
        with np.errstate(invalid="ignore"):  # a signaling NaN would warn
            blank = np.logical_not(keys.any((0, 1, 3)) | values.any((0, 1, 3)))
        for at in np.flatnonzero(np.logical_not(is_right)).tolist():
            # A static cache has many zero columns; `name_column` is slow.
            columns[at] = "zeros" if blank[at] else self.name_column(keys, values, at)
        return columns

    def name_column(self, keys: F32, values: F32, at: int) -> Column:
        """Returns the token in column `at`, or a description of any other content."""
        stored = [
            (array[:, :, at : at + 1], table)
            for array, table in ((keys, self.keys), (values, self.values))
        ]
        names = [name_vectors(*vectors) for vectors in stored]
        if names == [NO_TOKEN, NO_TOKEN] and self.keys.dim == self.values.dim:
            k, v = (array for array, _ in stored)
            owner = name_vectors(v, self.keys)
            if isinstance(owner, int) and owner == name_vectors(k, self.values):
                return f"{DRIFTED[0]} {owner} is in V, and its V in K"
        if self.tolerance:  # numbers are more telling than NO_TOKEN
            tags = [name.tag if isinstance(name, Drift) else name for name in names]
            tag = next((tag for tag in tags if isinstance(tag, int)), None)
            names = [
                measure_drift(*vectors, tag)
                if isinstance(name, str) and name not in UNSTORED
                else name
                for vectors, name in zip(stored, names, strict=True)
            ]
        key, value = names
        if drifted := name_drift(key, value):
            text, (_, drift) = format_drift(*drifted), drifted
            if not 0 < drift.off < inf:  # no rounding
                return text
            text += f", allowed {self.tolerance:g}"
            hint = "; if the cache is quantized, declare `tolerance`"
            return text if self.tolerance else text + hint
        if isinstance(key, int | str) and (key == value or not self.values.dim):
            return key
        if isinstance(value, int):
            return f"{MIXED} {format_vectors(key)}, but value of {format_vectors(value)}"
        return f"{MIXED} {format_vectors(key)}, but its value is {format_vectors(value)}"


def split_pair(pair: Any, name: str) -> tuple[Array, Array]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        type_name = "None" if pair is None else f"{type(pair).__name__}"
        raise Broken("malformed", f"{name} returned {type_name}, not a pair of arrays")
    if pair[0] is None or pair[1] is None:
        raise Broken("malformed", f"{name} returned None in the place of an array")
    return pair[0], pair[1]


def to_numpy(arrays: Arrays, array: Array, name: str) -> npt.NDArray[Any]:
    """Returns the content of `array`; raises Broken if it is not a framework array."""
    try:
        content = arrays.to_numpy(array)
    except Exception as error:
        raise Broken(
            "malformed",
            f"{name} is a {type(array).__name__} that cannot be read as an array"
            f" ({format_error(error)})",
        ) from error
    return content


def sort_columns(columns: Sequence[Any]) -> list[Any]:
    """Sorts columns: tokens first, in ascending order, then descriptions."""
    tokens = [column for column in columns if not isinstance(column, str)]
    texts = [column for column in columns if isinstance(column, str)]
    return [*sorted(tokens), *sorted(texts)]


# --- masks as rows ----------------------------------------------------------------------


# The lowest finite number that all supported float dtypes share. Models hide a column
# with this number, a lower number or -inf.
NEVER = float(np.finfo(np.float16).min)


def read_mask(mask: Mask, arrays: Arrays, additive: str | None = None) -> Any:
    """Returns the content of an array mask; returns None and strings unchanged.

    Args:
        mask: the mask that the backend returned.
        arrays: the framework's array functions.
        additive: the required dtype of an array mask; None for any dtype.
    """
    if mask is None or isinstance(mask, str):
        return mask
    return read_mask_array(mask, arrays, additive)


def read_mask_array(
    mask: Array, arrays: Arrays, additive: str | None = None
) -> npt.NDArray[Any]:
    """Returns the content of a mask; raises Broken if the mask is not an array."""
    content = to_numpy(arrays, mask, "the mask")
    if additive is not None and (dtype := arrays.dtype(mask)) != additive:
        raise Broken("mask", f"the mask has dtype {dtype}; {additive} was requested")
    return content


def get_rows(
    columns: list[Column], mask: Any, length: int, rows: int, alignment: Alignment
) -> list[list[Column]]:
    """Lists the columns that each of the first `length` rows sees.

    Args:
        columns: the content of each column.
        mask: the result of `read_mask`: None, a string or an array.
        length: the number of real rows.
        rows: the required number of rows of the mask; rows from `length` on are padding
            and must see nothing.
        alignment: the alignment of a "causal" mask.
    """
    width = len(columns)
    if mask is None or isinstance(mask, str):
        return get_implied_rows(columns, mask, length, rows, alignment)
    if length == rows == 1 and width == 0:
        return [[]]
    shown = get_visible_columns(mask, rows, width)
    for row in range(length, rows):
        if shown.rows[row]:
            raise Broken(
                "mask",
                f"row {row} of the mask is padding, but sees columns; it must see none",
            )
    return [[columns[at] for at in seen] for seen in shown.rows[:length]]


def get_implied_rows(
    columns: list[Column], mask: str | None, length: int, rows: int, to: Alignment
) -> list[list[Column]]:
    if rows > length:
        raise Broken(
            "mask",
            f"the mask is {mask!r}, so {rows - length} rows of padding see columns;"
            " they must see none",
        )
    if mask is None:
        return [list(columns) for _ in range(length)]
    if mask != "causal":
        raise Broken(
            "malformed", f'the mask is {mask!r}; expected None, "causal" or an array'
        )
    first = len(columns) - length if to == "lower-right" else 0
    return [columns[: max(0, first + row + 1)] for row in range(length)]


class VisibleColumns(NamedTuple):
    """The columns that a mask shows.

    Attributes:
        rows: for each row, the columns that the row sees.
        seen: for each column, whether at least one row sees the column.
    """

    rows: Sequence[Sequence[int]]
    seen: Sequence[bool]


def get_visible_columns(
    content: npt.NDArray[Any], rows: int, width: int
) -> VisibleColumns:
    """Returns the columns that each row of a mask sees.

    Args:
        content: the content of the mask; it must broadcast to [rows, width].
        rows: the number of rows.
        width: the number of columns.
    """
    if content.shape != (rows, width):
        content = broadcast_mask(content, rows, width)
    if content.dtype.kind not in NUMBERS:  # e.g. object arrays: bytes are pointers
        raise Broken("malformed", f"the mask holds {content.dtype}, not bool or numbers")
    interpret = recall_mask if content.nbytes <= MOST_RECALLED else interpret_mask
    return interpret(content.tobytes(), content.dtype, rows, width)


def broadcast_mask(content: npt.NDArray[Any], rows: int, width: int) -> npt.NDArray[Any]:
    """Broadcasts a mask to [rows, width], as attention does.

    Raises:
        Broken: the mask does not broadcast to this shape.
    """
    shape = content.shape
    try:
        return np.broadcast_to(content.reshape(shape[-2:]), (rows, width))
    except ValueError:
        raise Broken(
            "mask",
            f"the mask has shape {list(shape)}, which does not broadcast to {rows}"
            f" rows × {width} columns",
        ) from None


NUMBERS = "bfiu"
"""The numpy dtype kinds that a mask may have: bool, float, int and unsigned int."""

MOST_RECALLED = 1024
"""The size limit in bytes of masks in the memo; a program repeats most small masks."""


def interpret_mask(
    content: bytes, dtype: np.dtype[Any], rows: int, width: int
) -> VisibleColumns:
    """Returns the visible columns of a mask. This is a pure function, so that its results
    can be cached.

    Raises:
        Broken: an additive mask has a number that is neither 0 nor at most `NEVER`.
    """
    array: npt.NDArray[Any] = np.ndarray((rows, width), dtype, content)
    if dtype == np.bool_:
        seen = array
    else:
        seen = array == 0
        tags_known = np.count_nonzero(seen) + np.count_nonzero(array <= NEVER)
        if tags_known < array.size:
            raise Broken("mask", "the additive mask holds numbers other than 0 and -inf")
    columns = range(width)
    listed = tuple([tuple(compress(columns, row)) for row in seen.tolist()])
    shown = set().union(*listed)
    return VisibleColumns(listed, tuple([column in shown for column in columns]))


recall_mask = lru_cache(maxsize=4096)(interpret_mask)


# --- the system -------------------------------------------------------------------------


WEIGHED = 4
"""Memory is compared after every 4th operation, and at the end of a program.

At the end alone, an emptied cache no longer shows how it had grown."""


@dataclass(frozen=True)
class Setup:
    """The backend and the settings with which one program runs.

    Attributes:
        backend: the backend under test.
        declared: the backend's declaration of the kind.
        config: a complete config.
        ops: the operations of the program.
        tags: the number of tags in the program.
        every: whether to run the expensive checks too, at every step: watch all arrays
            that go into or come out of the cache, and run attention on each pass.
        writes: the operations that may invalidate earlier views of the cache.
        layer: the layer number; each layer has different payloads.
        compared: see `System`.
    """

    backend: Backend
    declared: Kind
    config: Config
    ops: Sequence[Op]
    tags: int
    every: bool
    writes: Collection[str]
    layer: int = 0
    compared: Counter[str] = field(default_factory=Counter)


class System:
    """The system under test, for one program.

    The executor calls `check_aliases(op)` before each operation, `verify_memory(op,
    model)` after each operation, and `finish()` at the end. `check_aliases` and `finish`
    check that watched arrays have not changed. After a call of `tell_layout()`, answers
    also contain the returned columns and the columns that each row sees.

    Attributes:
        margins: the used share of each tolerance so far.
        attends: whether to run attention on each pass. Attention over special numbers is
            undefined.
        writes: the operations that may invalidate earlier views of the cache.
        limit: the exclusive upper bound of tags.
        compared: "attention" or one of `Kind.tells` → the number of steps that compared
            it; "NAME due" → the number of steps that should have filled it; "special
            numbers" → 1 if K and V hold them.
        operations: the number of calls of `is_weighed`.
    """

    margins: Margins

    def __init__(self, setup: Setup) -> None:
        self.backend, self.declared = setup.backend, setup.declared
        self.arrays, self.every = setup.backend.arrays, setup.every
        self.writes, self.compared = setup.writes, setup.compared
        special = setup.config.get("special_numbers") and not setup.backend.tolerance
        self.compared["special numbers"] = int(bool(special))
        self.attends = setup.every and not special
        self.config = {**setup.config, "poison": setup.backend.poison}
        self.limit = max(1, setup.tags)
        self.watch = ArrayWatch(self.arrays)
        self.tells_layout = False
        self.operations = 0

    def tell_layout(self) -> None:
        self.tells_layout = True

    def ask(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Calls the backend, which may refuse the call; see `ask_backend`."""
        return ask_backend(call, self.backend.errors)

    def declares(self, sizes: Mapping[str, Any]) -> bool:
        """Tells whether the kind may be opened with these values of config fields."""
        declared = self.declared.config
        return all(value in declared.get(name, [value]) for name, value in sizes.items())

    def tell_held(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Returns named contents that the backend reported after the last operation.

        Pictures show these contents. The keys are the cache names in `list_held` of the
        model.
        """
        return {}

    def check_aliases(self, op: Op) -> None:
        """Checks, before `op` runs, the watched arrays that `op` may invalidate."""
        if not self.watch.kept:
            return
        if self.every:
            self.watch.check()
        if self.backend.lifetime == "until-write" and op["op"] in self.writes:
            owner = op.get("cache", "a")
            self.watch.check(owner)
            self.watch.drop(owner)

    def verify_memory(self, op: Mapping[str, Any], model: Any) -> None:
        """Compares the backend's memory with the memory that the contents need.

        The comparison takes place if `is_weighed()`, and in `finish`.

        Args:
            op: the operation that has just run.
            model: the reference after the operation.
        """
        raise NotImplementedError

    def is_weighed(self) -> bool:
        """Tells whether memory is compared now: after each operation if the expensive
        checks are on, otherwise after one of `WEIGHED` operations."""
        self.operations += 1
        return self.every or self.operations % WEIGHED == 0

    def finish(self) -> None:
        self.watch.check()

    @contextmanager
    def lend(self, owner: str, operation: str, arrays: Sequence[Array]) -> Iterator[None]:
        """Wraps the code that passes arrays to a cache and reads the result.

        The caller owns the arrays. The cache must not write to them. The caller may
        overwrite them later, as a model that reuses its buffers does; this must not
        change the cache.
        """
        if self.declared.inputs == "kept":
            yield
            return
        watched = self.watch.keep(owner, operation, arrays, True) if self.every else None
        yield
        if self.backend.overwrite is None:
            return
        if watched is not None:
            watched.check(self.arrays, "before the call ended")
        for array in arrays:
            self.backend.overwrite(array)
        if watched is not None:
            watched.note(self.arrays)
            self.watch.check(owner, "when the caller overwrote what it had given")


def explain_nan(arrays: Arrays, keys: Array, values: Array, row: int = 0) -> str:
    """Names the columns of a row of K and V [rows, heads, columns, dim] that hold NaN."""
    pair = arrays.to_numpy(keys), arrays.to_numpy(values)
    nan = [np.isnan(array[row]).any((0, 2)) for array in pair]
    columns = [str(column) for column in np.flatnonzero(nan[0] | nan[1])]
    if not columns:
        return ""
    if len(columns) == 1:
        hold = f"column {columns[0]} holds"
    else:
        hold = f"columns {', '.join(columns)} hold"
    return f", but {hold} NaN: fill hidden columns with numbers, as 0 · NaN is NaN"


def judge_attention(
    got: npt.NDArray[Any],
    wanted: npt.NDArray[Any],
    tolerance: float,
    row: int,
    name: str,
    explain: Callable[[], str] = str,
) -> float:
    """Compares one row of attention with the result of the reference.

    Args:
        got: the backend framework's result, [heads, value_dim].
        wanted: the reference's result in double precision, [heads, value_dim].
        tolerance: the largest allowed error.
        row: the row number.
        name: the operation that returned the K and V.
        explain: returns the end of a message about NaN, which names the memory that holds
            it.

    Returns:
        The error divided by the tolerance.

    Raises:
        Broken: the error is larger than the tolerance.
    """
    error = float(np.abs(got - wanted).max())
    if not error <= tolerance:
        raise Broken(
            "attention",
            f"attention over the arrays of {name} is off by {error:.2g} in row {row}"
            f" ({compare_numbers(got, wanted, heads=0)}), allowed {tolerance:.2g};"
            f" K, V and the mask are as expected{explain() if np.isnan(error) else ''}",
        )
    return error / tolerance
