"""Batches of recurrent states for any framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from lockstep.impl.shared.batched import Bools, CacheBatch, Saved, check_stack
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.memory import Arrays
from lockstep.impl.shared.state import check_form


class StateBatch(CacheBatch):
    """The convolution and delta states of several requests, one row for each request.

    The states are not stored in a pool. A pool would avoid copies when rows leave or
    join, but each write copies more: it replaces the states of all rows.

    Args:
        arrays: conv [rows, conv_width - 1, channels] and delta [rows, heads, key_dim,
            value_dim], filled with zeros. Nothing else may use these arrays.
    """

    single: type

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays[0].shape[0])
        self.arrays = arrays

    # --- arrays of a framework ----------------------------------------------------------

    @abstractmethod
    def convert(self, tokens: Bools) -> Any:
        """Converts a numpy array to an array of the framework."""

    @abstractmethod
    def choose(self, array: Any, rows: Sequence[int]) -> Any:
        """Returns a copy of these rows."""

    @abstractmethod
    def concatenate(self, arrays: Sequence[Any]) -> Any:
        """Concatenates the rows of all arrays, in new memory."""

    @abstractmethod
    def clear_array(self, array: Any) -> Any:
        """Returns zeros with the shape and dtype of the array."""

    @abstractmethod
    def store(self, arrays: Arrays) -> None:
        """Stores a copy of the states of all rows."""

    @abstractmethod
    def make_single(self) -> Any:
        """Returns an empty single cache for states of the same shapes and dtypes."""

    # --- states -------------------------------------------------------------------------

    def make_mask(self, length: int) -> Any:
        """Returns bool [rows, length]: whether each column of the next update is a token.

        Returns None if all columns are tokens.
        """
        counts = self.count_tokens(length)
        if min(counts) == length:
            return None
        return self.convert(self.find_tokens(counts, length))

    def read(self) -> Arrays:
        """Returns conv [rows, conv_width - 1, channels] and delta [rows, heads, key_dim,
        value_dim]."""
        return self.arrays

    def write(self, conv: Any, delta: Any, length: int) -> None:
        """Stores the states after `length` more columns.

        The caller uses the mask to find the columns that are tokens; padding must not
        change the states.
        """
        counts = self.count_tokens(length)
        check_form(self.arrays, (conv, delta))
        self.store((conv, delta))
        self.advance(counts, length)

    def state(self) -> list[Arrays]:
        """Returns conv and delta of each row."""
        conv, delta = self.read()
        rows = range(len(self.lengths))
        return [(conv[row : row + 1], delta[row : row + 1]) for row in rows]

    def may_roll_back(self, counts: Sequence[int]) -> bool:
        return not any(counts)

    # --- rows ---------------------------------------------------------------------------

    def keep(self, rows: Sequence[int]) -> None:
        conv, delta = self.arrays
        self.arrays = self.choose(conv, rows), self.choose(delta, rows)

    def check_join(self, joined: Self) -> None:
        self.check_forms("extend", joined.arrays)

    def join(self, joined: Self) -> None:
        self.put_together([self.arrays, joined.arrays])

    def check_forms(self, operation: str, arrays: Arrays) -> None:
        """Raises MisuseError if rows of these arrays do not fit into this batch."""
        for mine, its in zip(self.arrays, arrays, strict=True):
            if (mine.shape[1:], mine.dtype) != (its.shape[1:], its.dtype):
                raise MisuseError(
                    f"{operation}: the states are {its.dtype} {list(its.shape)}; this"
                    f" batch has {mine.dtype} {list(mine.shape)}; only the number of rows"
                    " may differ"
                )

    def put_together(self, batches: Sequence[Arrays]) -> None:
        conv, delta = zip(*batches, strict=True)
        self.arrays = self.concatenate(conv), self.concatenate(delta)

    def take(self, row: int) -> Any:
        cache = self.make_single()
        cache.store(*(array[row : row + 1] for array in self.arrays))
        cache.offset = self.lengths[row]
        return cache

    @classmethod
    def check_singles(cls, caches: Sequence[Any]) -> None:
        check_stack(caches, [cls.single])
        for cache in caches:
            check_form(caches[0].read(), cache.read())

    @classmethod
    def join_singles(cls, caches: Sequence[Any]) -> Self:
        batch = cls(caches[0].read())
        batch.put_together([cache.read() for cache in caches])
        batch.lengths = tuple(cache.offset for cache in caches)
        return batch

    def clear(self) -> None:
        conv, delta = self.arrays
        self.arrays = self.clear_array(conv), self.clear_array(delta)

    def clone(self) -> Self:
        self.check_settled("clone")
        rows = range(len(self.lengths))
        conv, delta = (self.choose(array, rows) for array in self.arrays)
        copied = type(self)((conv, delta))
        copied.lengths = self.lengths
        return copied

    def save(self) -> Saved:
        """Returns "conv" and "delta", in the form of `read`, and "lengths"."""
        copy = self.clone()
        conv, delta = copy.arrays
        return {"conv": conv, "delta": delta, "lengths": list(copy.lengths)}

    def check_form(self, saved: Saved) -> None:
        rows, arrays = len(saved["lengths"]), (saved["conv"], saved["delta"])
        self.check_forms("load", arrays)
        if {array.shape[0] for array in arrays} != {rows}:
            raise MisuseError(
                f"load: conv and delta have {arrays[0].shape[0]} and"
                f" {arrays[1].shape[0]} rows, but both must have {rows}, as many as"
                " `lengths`"
            )

    def replace_rows(self, saved: Saved) -> None:
        rows = range(len(saved["lengths"]))
        conv, delta = saved["conv"], saved["delta"]
        self.arrays = self.choose(conv, rows), self.choose(delta, rows)

    def list_arrays(self) -> Sequence[Any]:
        return self.arrays
