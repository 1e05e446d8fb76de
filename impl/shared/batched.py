"""Batches of caches for any framework: the rows, their lengths, and announced padding.

The memory of a row contains no padding. After the update that contains the padding, the
columns of the padding are no longer known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import index
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.layer import LayerCache
from lockstep.impl.shared.rows import add

Bools = npt.NDArray[np.bool_]

Saved = dict[str, Any]
"""Arrays by name, and the lengths of the rows."""


class CacheBatch(ABC):
    """The caches of several requests in one layer, one row for each request.

    Args:
        rows: number of rows, which are empty.

    Attributes:
        lengths: for each row, the number of written tokens minus the number of trimmed
            tokens.
        left: for each row, the number of padding columns at the beginning of the next
            update; None if no padding is announced.
        coming: between `pad_right` and `finalize`, the number of tokens that each row
            will still get.
        announced: the number of announced columns that have not come yet.
    """

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise MisuseError(f"open: a batch needs at least 1 row, not {rows}")
        self.lengths = (0,) * rows
        self.left: tuple[int, ...] | None = None
        self.coming: tuple[int, ...] | None = None
        self.announced = 0

    @property
    def offsets(self) -> tuple[int, ...]:
        """The position of the first column of the next update, for each row."""
        if self.left is None:
            return self.lengths
        pairs = zip(self.lengths, self.left, strict=True)
        return tuple(length - padding for length, padding in pairs)

    # --- padding ------------------------------------------------------------------------

    def pad_left(self, padding: Sequence[int]) -> None:
        """Announces the padding columns before each row's tokens in the next update."""
        self.check_settled("pad_left")
        wrong = len(padding) != len(self.lengths) or min(padding)
        if wrong or any(self.lengths):
            raise MisuseError(
                f"pad_left: padding {list(padding)} before rows of {list(self.lengths)}"
                " tokens; the batch must be empty, and get 0 or more columns for each"
                " row, with 0 for at least one"
            )
        self.left = tuple(map(index, padding))

    def pad_right(self, lengths: Sequence[int]) -> None:
        """Announces how many tokens each row will get in the next updates. Columns after
        these tokens are padding. The updates have max(lengths) columns together, even if
        the longest row leaves the batch."""
        self.check_settled("pad_right")
        if len(lengths) != len(self.lengths) or min(lengths) < 1:
            raise MisuseError(
                f"pad_right: {list(lengths)} tokens for {len(self.lengths)} rows; give"
                " one number for each row, at least 1"
            )
        self.coming, self.announced = tuple(map(index, lengths)), index(max(lengths))

    def finalize(self) -> None:
        """Ends the padding on the right."""
        if self.coming is None or self.announced:
            raise MisuseError(
                "finalize: no padding was announced; call pad_right first"
                if self.coming is None
                else f"finalize: {self.announced} announced columns are missing; update"
                " with them first"
            )
        self.coming = None

    def check_settled(self, operation: str) -> None:
        """Raises MisuseError if announced padding has not arrived yet."""
        if self.left is not None or self.coming is not None:
            raise MisuseError(
                f"{operation}: announced padding is not complete; first update, and"
                " finalize if it is on the right"
            )

    def count_tokens(self, length: int) -> tuple[int, ...]:
        """Returns, for each row, the number of tokens in the next `length` columns."""
        most = None if self.coming is None else self.announced
        if length < 1 or (most is not None and length > most):
            raise MisuseError(
                f"update: {length} columns were given; give at least 1"
                + ("" if most is None else f", at most the {most} still announced")
            )
        if self.coming is not None:
            return tuple(min(length, coming) for coming in self.coming)
        if self.left is None:
            return (length,) * len(self.lengths)
        if max(self.left) >= length:
            raise MisuseError(
                f"update: the rows get {length} columns, of which {list(self.left)}"
                f" were announced as padding; give more than {max(self.left)} columns,"
                " so that each row gets a token"
            )
        return tuple(length - padding for padding in self.left)

    def find_tokens(self, counts: Sequence[int], length: int) -> Bools:
        """Returns bool [rows, length]: whether each of the next columns is a token."""
        padding = np.array(self.left or [0] * len(counts))[:, None]
        places = np.arange(length)
        is_token: Bools = (places >= padding) & (
            places < padding + np.array(counts)[:, None]
        )
        return is_token

    def advance(self, counts: Sequence[int], length: int) -> None:
        """Adds `counts[row]` to the length of each row, after `length` columns."""
        self.lengths = add(self.lengths, counts)
        self.left = None
        if self.coming is not None:
            self.coming = add(self.coming, [-count for count in counts])
            self.announced -= length

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of each row.

        Returns:
            The number of removed tokens of each row; 0 if a window has dropped tokens
            that the row would need.
        """
        return count if self.rollback([count] * len(self.lengths)) else 0

    def rollback(self, counts: Sequence[int]) -> bool:
        """Removes the last `counts[row]` tokens of each row.

        Returns:
            False if a window has dropped tokens that a row would need; then nothing
            changes.
        """
        self.check_counts(counts)
        if not self.may_roll_back(counts):
            return False
        self.advance([-count for count in counts], 0)
        return True

    def check_counts(self, counts: Sequence[int]) -> None:
        """Raises MisuseError unless each row has at least `counts[row]` tokens."""
        self.check_settled("rollback")
        wrong = len(counts) != len(self.lengths)
        if wrong or any(
            count not in range(length + 1)
            for count, length in zip(counts, self.lengths, strict=True)
        ):
            raise MisuseError(
                f"rollback: cannot remove {list(counts)} tokens from rows of"
                f" {list(self.lengths)}; give one number for each row, at most its"
                " tokens"
            )

    # --- rows ---------------------------------------------------------------------------

    def filter(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order, each at most once."""
        self.check_rows("filter", rows)
        if len(set(rows)) < len(rows):
            raise MisuseError(
                f"filter: rows has a row twice: {list(rows)}; select can repeat rows"
            )
        self.select(rows)

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. A row number that appears twice gives two
        rows."""
        self.check_rows("select", rows)
        numbers = [index(row) for row in rows]
        self.keep(numbers)
        self.lengths = tuple(self.lengths[number] for number in numbers)
        if self.coming is not None:
            self.coming = tuple(self.coming[number] for number in numbers)

    def repeat(self, times: int) -> None:
        """Repeats each row `times` times; the copies are adjacent."""
        if times < 1:
            raise MisuseError(f"repeat: times must be at least 1, not {times}")
        self.select([row for row in range(len(self.lengths)) for _ in range(times)])

    def extend(self, joined: Self) -> None:
        """Appends the rows of another batch, and consumes that batch."""
        self.check_extend(joined)
        self.join(joined)
        self.lengths += joined.lengths
        joined.free()

    def check_extend(self, joined: Self) -> None:
        """Raises MisuseError if the rows of the other batch do not fit into this
        batch."""
        if joined is self:
            raise MisuseError(
                "extend: a batch cannot be extended by itself; clone it first"
            )
        if type(joined) is not type(self):
            raise MisuseError(
                f"extend: a {type(self).__name__} cannot get the rows of a"
                f" {type(joined).__name__}; both must be of the same class"
            )
        self.check_settled("extend")
        joined.check_settled("extend")
        self.check_join(joined)

    @classmethod
    def stack(cls, caches: Sequence[Any]) -> Self:
        """Returns a batch of single caches, and consumes these caches."""
        cls.check_singles(caches)
        batch = cls.join_singles(caches)
        for cache in caches:
            cache.free()
        return batch

    def extract(self, row: int) -> LayerCache:
        """Returns an independent single cache with the tokens of one row."""
        self.check_rows("extract", [row])
        return self.take(index(row))

    def free(self) -> None:
        """Empties all rows."""
        self.check_settled("free")
        self.clear()
        self.lengths = (0,) * len(self.lengths)

    def check_rows(self, operation: str, rows: Sequence[int]) -> None:
        """Raises MisuseError if no row is given, or a row number is out of range, or
        announced padding on the left has not arrived yet."""
        if self.coming is None:
            self.check_settled(operation)
        count = len(self.lengths)
        if not rows or any(row not in range(count) for row in rows):
            raise MisuseError(
                f"{operation}: rows must be one or more of 0 … {count - 1}, not"
                f" {list(rows)}"
            )

    def load(self, saved: Saved) -> None:
        """Replaces the rows of an empty batch by rows that `save` returned."""
        self.check_saved(saved)
        self.replace_rows(saved)
        self.lengths = tuple(saved["lengths"])

    def check_saved(self, saved: Saved) -> None:
        """Raises MisuseError if this batch cannot load a result of `save`."""
        self.check_settled("load")
        if any(self.lengths):
            raise MisuseError("load: the batch has tokens; load into an empty batch")
        self.check_form(saved)

    @abstractmethod
    def may_roll_back(self, counts: Sequence[int]) -> bool:
        """Returns whether the last `counts[row]` tokens of each row can be removed: the
        row then still holds all tokens that it needs."""

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> None:
        """Keeps the arrays of these rows, in this order."""

    @abstractmethod
    def check_join(self, joined: Self) -> None:
        """Raises MisuseError if the arrays of another batch have other shapes or
        dtypes."""

    @abstractmethod
    def join(self, joined: Self) -> None:
        """Appends the arrays of another batch."""

    @classmethod
    @abstractmethod
    def check_singles(cls, caches: Sequence[Any]) -> None:
        """Raises MisuseError if these caches cannot be the rows of one batch."""

    @classmethod
    @abstractmethod
    def join_singles(cls, caches: Sequence[Any]) -> Self:
        """Returns a batch with a copy of the arrays of single caches."""

    @abstractmethod
    def take(self, row: int) -> LayerCache:
        """Returns a cache with a copy of the arrays of one row."""

    @abstractmethod
    def clear(self) -> None:
        """Frees the arrays, or fills them with their initial content."""

    @abstractmethod
    def clone(self) -> Self:
        """Returns an independent batch with the same rows."""

    @abstractmethod
    def save(self) -> Saved:
        """Returns a copy of the content."""

    @abstractmethod
    def check_form(self, saved: Saved) -> None:
        """Raises MisuseError if the saved arrays have other shapes or dtypes."""

    @abstractmethod
    def replace_rows(self, saved: Saved) -> None:
        """Replaces the arrays by a copy of the arrays that `save` returned."""

    @abstractmethod
    def list_arrays(self) -> Sequence[Any]: ...

    def held(self) -> dict[str, int]:
        """Counts the bytes of the arrays."""
        return {"bytes": sum(array.nbytes for array in self.list_arrays())}


def check_stack(caches: Sequence[Any], kinds: Sequence[type]) -> None:
    """Raises MisuseError unless the caches are different objects of one class, and this
    class is in `kinds`."""
    if not caches:
        raise MisuseError("stack: no cache was given; a batch needs at least 1 row")
    kinds_found = {type(cache) for cache in caches}
    if len(kinds_found) > 1 or not kinds_found <= set(kinds):
        names = sorted(kind.__name__ for kind in kinds_found)
        raise MisuseError(
            "stack: all caches must be of the same class,"
            f" {' or '.join(kind.__name__ for kind in kinds)}, not {', '.join(names)}"
        )
    if len({id(cache) for cache in caches}) < len(caches):
        raise MisuseError("stack: a cache was given twice; clone it first")
