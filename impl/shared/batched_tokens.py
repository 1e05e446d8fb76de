"""Batches of full and of sliding-window caches, whose rows are in one pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from lockstep.impl.shared.batched import Bools, CacheBatch, Saved, check_stack
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.memory import Arrays
from lockstep.impl.shared.pool import Row, RowPool, cut
from lockstep.impl.shared.rows import add, cut_ring

Span = tuple[int, int]
Starts = Sequence[int]


class TokenBatch(CacheBatch):
    """A batch of full caches or of sliding windows.

    The returned arrays have the columns of the pool, with one exception: an update of
    several columns that exceeds the window returns the old columns, then the new columns.

    Args:
        rows: number of rows.
        window: number of tokens that a query sees, including itself; None for all tokens.
        step: see `RowPool`.
        fill: the initial content of the memory; None for any content.
        mask: an object with the dtype of masks; on torch, also with their device.
    """

    singles: tuple[Any, Any]  # classes: full, rotating
    pool: RowPool

    def __init__(
        self, rows: int, window: int | None, step: int, fill: Any, mask: Any
    ) -> None:
        if window is not None and window < 1:
            raise MisuseError(f"window must be at least 1 token, not {window}")
        super().__init__(rows)
        self.window, self.step, self.fill, self.mask = window, step, fill, mask

    # --- arrays of a framework ----------------------------------------------------------

    @abstractmethod
    def get_ends(self) -> Any:
        """Returns for each row the column after its tokens, as if there were no window.

        The type of the result depends on the framework.
        """

    @abstractmethod
    def make_causal(self, length: int) -> Any:
        """Makes the mask of an update without padding, if all rows have the same
        length."""

    @abstractmethod
    def make_seen(self, length: int, span: Span, starts: Starts) -> Any:
        """Makes a mask over columns of the pool, for rows of any lengths.

        Args:
            length: number of columns of the update.
            span: the columns (begin, end) that are returned.
            starts: for each row the column of position 0.
        """

    @abstractmethod
    def make_joint(self, length: int, span: Span) -> Any:
        """Makes a mask over the old columns of the pool and then the new columns.

        The old columns have their content before the update. For the arguments, see
        `make_seen`.
        """

    @abstractmethod
    def blank(self, arrays: Arrays, tokens: Bools) -> Arrays:
        """Returns K and V with zeros in the padding columns."""

    def make_single(self) -> Any:
        """Returns an empty single cache with the same options."""
        full, rotating = self.singles
        options = self.step, self.fill, self.mask
        return full(*options) if self.window is None else rotating(self.window, *options)

    # --- tokens -------------------------------------------------------------------------

    def make_mask(self, length: int) -> Any:
        """Returns the mask of the next update; None if every query sees every column.

        Args:
            length: number of columns of the update.

        Returns:
            An array that can be broadcast to [rows, 1, length, columns].
        """
        counts = self.count_tokens(length)
        if self.is_joint(counts, length):
            return self.make_joint(length, self.get_span())
        ends, starts = add(self.lengths, counts), self.pool.plan(self.lengths, counts)
        lowest, span = min(ends), self.pool.get_span(starts, ends)
        has_padding = min(counts) < length
        # The span begins at the last start, and is as long as the shortest row.
        even = not has_padding and span == (max(starts), max(starts) + lowest)
        if length == 1 and (even or lowest >= (self.window or lowest + 1)):
            return None
        if even:
            return self.make_causal(length)
        return self.make_seen(length, span, starts)

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [rows, heads, length, key_dim] and V.

        Returns:
            K and V of all rows, with the columns of the mask.
        """
        arrays, shape = (keys, values), keys.shape
        if len(shape) != 4 or shape[0] != len(self.lengths):
            raise MisuseError(
                f"update: K has shape {list(shape)}, but must have"
                f" [{len(self.lengths)}, heads, length, key_dim]: one row for each row"
                " of the batch"
            )
        counts = self.count_tokens(shape[2])
        self.pool.accept(arrays)
        joined = None
        if self.is_joint(counts, shape[2]):
            tokens = arrays
            if self.coming is not None or self.left is not None:
                tokens = self.blank(arrays, self.find_tokens(counts, shape[2]))
            old = self.pool.read(*self.get_span()) if any(self.lengths) else None
            joined = self.concatenate(old, tokens)
        self.pool.reserve(arrays, self.lengths, counts)
        self.write(counts, arrays)
        self.advance(counts, shape[2])
        return joined or self.pool.read(*self.get_span())

    def get_span(self) -> Span:
        """Returns the columns (begin, end) of the pool that hold tokens."""
        return self.pool.get_span(self.pool.starts, self.lengths)

    def concatenate(self, old: Arrays | None, new: Arrays) -> Arrays:
        """Returns a copy of the old and the new tokens, concatenated; `old` may
        be None."""
        return self.pool.join([new] if old is None else [old, new])

    def write(self, counts: Sequence[int], arrays: Arrays) -> None:
        """Writes the tokens of an update to the pool, without padding."""
        length, room = arrays[0].shape[2], self.pool.room
        if min(counts) < length:
            paddings = self.left or (0,) * len(counts)
            for row, (begin, count, padding) in enumerate(
                zip(self.lengths, counts, paddings, strict=True)
            ):
                row_arrays = arrays[0][row : row + 1], arrays[1][row : row + 1]
                self.pool.put(row, begin, cut(row_arrays, padding, padding + count))
            return
        cursor = self.pool.find_cursor(self.lengths)
        if cursor is not None:
            for column, first, end in cut_ring(cursor, length, room):
                piece = arrays if end - first == length else cut(arrays, first, end)
                self.pool.write_rows(column, piece)
        else:
            skip = max(0, length - room)
            tokens = cut(arrays, skip, length) if skip else arrays
            self.pool.scatter(self.get_ends(), skip, tokens)

    def is_joint(self, counts: Sequence[int], length: int) -> bool:
        """Returns whether an update returns the pool's old columns, followed by the new
        columns.

        This is necessary if the update may overwrite tokens that its first queries see.
        """
        if self.window is None or length == 1:
            return False
        return max(add(self.lengths, counts)) > self.window

    def finalize(self) -> None:
        super().finalize()
        self.pool.even_out(self.lengths)

    def size(self) -> tuple[int, ...]:
        """Returns the number of stored tokens of each row."""
        return tuple(map(self.pool.count, self.lengths))

    def state(self) -> list[Arrays | None]:
        """Returns K and V of the stored tokens of each row, in any order; None for a row
        without tokens."""
        return [*map(self.pool.read_row, range(len(self.lengths)), self.lengths)]

    def may_roll_back(self, counts: Sequence[int]) -> bool:
        pairs = zip(counts, self.lengths, strict=True)
        return self.window is None or not any(
            count and length > self.window for count, length in pairs
        )

    # --- rows ---------------------------------------------------------------------------

    def keep(self, rows: Sequence[int]) -> None:
        rows_held = self.pool.list_rows(self.lengths)
        self.pool.arrange([rows_held[row] for row in rows])

    def check_join(self, joined: Self) -> None:
        if self.window != joined.window:
            raise MisuseError(
                f"extend: the window of the other batch is {joined.window}, but must be"
                f" {self.window}, as in this batch"
            )
        forms = [self.pool.form, joined.pool.form]
        if None not in forms and forms[0][1:] != forms[1][1:]:
            raise MisuseError(
                "extend: heads, key_dim, value_dim and dtypes of the other batch are"
                f" {forms[1][1:]}, but must be {forms[0][1:]}, as in this batch"
            )

    def join(self, joined: Self) -> None:
        pool, pool_joined = self.pool, joined.pool
        if pool.arrays is None:
            self.pool, joined.pool = pool_joined, pool
            empty = [Row(None, 0, 0)] * len(self.lengths)
            pool_joined.arrange([*empty, *pool_joined.list_rows(joined.lengths)])
            pool.set_rows(len(joined.lengths))
        else:
            pool.extend(self.lengths, pool_joined, joined.lengths)

    def take(self, row: int) -> Any:
        cache, offset, pool = self.make_single(), self.lengths[row], self.pool
        if offset:
            columns = pool.read_slot(pool.first + row, 0, pool.room)
            runs = pool.find_runs(pool.starts[row], offset, pool.room)
            cache.adopt(columns, runs, offset)
        return cache

    @classmethod
    def check_singles(cls, caches: Sequence[Any]) -> None:
        check_stack(caches, cls.singles)
        windows = [cache.window for cache in caches]
        if len(set(windows)) > 1:
            raise MisuseError(
                f"stack: all caches must have the same window, but have {windows}"
            )
        forms = {cache.form for cache in caches} - {None}
        if len(forms) > 1:
            raise MisuseError(
                "stack: all caches must have the same heads, key_dim, value_dim and"
                f" dtypes, but have {[*forms]}"
            )

    @classmethod
    def join_singles(cls, caches: Sequence[Any]) -> Self:
        window, mask, memory = caches[0].window, caches[0].mask, caches[0].memory
        batch = cls(len(caches), window, memory.columns.step, memory.fill, mask)
        forms = {cache.form for cache in caches} - {None}
        batch.fill_rows(caches, next(iter(forms), None))
        return batch

    def fill_rows(self, caches: Sequence[Any], form: tuple[Any, ...] | None) -> None:
        contents = [cache.view() for cache in caches]
        self.lengths = tuple(cache.offset for cache in caches)
        if form is not None:
            self.pool.form = (len(contents), *form[1:])
        filled = [
            (row, content) for row, content in enumerate(contents) if content is not None
        ]
        if filled:
            self.pool.open(filled[0][1], self.lengths)
        for row, content in filled:
            self.pool.put(row, self.lengths[row] - content[0].shape[2], content)

    def clear(self) -> None:
        self.pool.clear()

    def make_empty(self, rows: int) -> Self:
        """Returns an empty batch with the same options."""
        return type(self)(rows, self.window, self.step, self.fill, self.mask)

    def clone(self) -> Self:
        self.check_settled("clone")
        copied = self.make_empty(len(self.lengths))
        copied.lengths, copied.pool = self.lengths, self.pool.clone()
        return copied

    def save(self) -> Saved:
        """Returns "keys", "values", "lengths", "starts" and "window".

        K and V are [rows, heads, columns, dim], or None if there are no tokens. Position
        p of a row is in column starts[row] + p, modulo the window.
        """
        self.check_settled("save")
        begin, end = self.get_span()
        keys = values = None
        if end:
            keys, values = self.pool.copy(self.pool.read(begin, end))
        starts = [
            start - begin if length else 0
            for start, length in zip(self.pool.starts, self.lengths, strict=True)
        ]
        about = {"lengths": list(self.lengths), "starts": starts, "window": self.window}
        return {"keys": keys, "values": values, **about}

    def check_form(self, saved: Saved) -> None:
        if saved["window"] != self.window:
            raise MisuseError(
                f"load: the saved window is {saved['window']}, but must be"
                f" {self.window}, as in this batch"
            )
        keys, rows = saved["keys"], len(saved["lengths"])
        end = self.find_saved_end(saved) if len(saved["starts"]) == rows else None
        fits = keys is not None and tuple(keys.shape[:3:2]) == (rows, end)
        if end is None or (end and not fits):
            lengths = tuple(saved["lengths"])
            raise MisuseError(
                f"load: the saved keys and starts do not fit rows of {lengths} tokens;"
                " pass what save returned"
            )

    def find_saved_end(self, saved: Saved) -> int:
        """Returns the number of columns that were saved."""
        return self.pool.get_span(saved["starts"], saved["lengths"])[1]

    def replace_rows(self, saved: Saved) -> None:
        lengths, end = tuple(saved["lengths"]), self.find_saved_end(saved)
        keys, values = saved["keys"], saved["values"]
        self.pool.clear()
        self.pool.set_rows(len(lengths))
        if not end:
            return
        self.pool.accept((keys, values))
        self.pool.open((keys, values), lengths)
        for row, (start, length) in enumerate(zip(saved["starts"], lengths, strict=True)):
            row_arrays = keys[row : row + 1], values[row : row + 1]
            for position, first, last in self.pool.find_runs(start, length, end):
                self.pool.put(row, position, cut(row_arrays, first, last))

    def list_arrays(self) -> Sequence[Any]:
        return self.pool.arrays or ()
