"""Batches of full and of sliding-window caches, over a pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from lockstep.impl.shared.batched import Batch, Bools, Saved, check_stack
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.form import Arrays
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.pool import Pool, cut
from lockstep.impl.shared.rotating import RotatingCacheBase
from lockstep.impl.shared.rows import cut_ring

Single = KVCacheBase | RotatingCacheBase


class TokenBatch(Batch):
    """A batch of full caches, or of sliding windows.

    The columns of the returned arrays are those of the pool: a row has its tokens from
    the left, or is a ring. Only where an update of several columns passes the window, the
    new columns are returned behind the old ones.

    Args:
        rows: number of rows.
        window: number of tokens that a query sees, itself included; None for all.
        step: see `Pool`.
        fill: initial content of the memory; None for any.
        mask: has the dtype, and on torch the device, of masks.
    """

    singles: Sequence[type]
    pool: Pool

    def __init__(
        self, rows: int, window: int | None, step: int, fill: Any, mask: Any
    ) -> None:
        if window is not None and window < 1:
            raise MisuseError(f"window {window} holds no token")
        super().__init__(rows)
        self.window, self.step, self.fill, self.mask = window, step, fill, mask

    # --- arrays of a framework ----------------------------------------------------------

    @abstractmethod
    def get_lengths(self) -> Any:
        """Returns the lengths as a framework needs them to compute with."""

    @abstractmethod
    def make_causal(self, length: int) -> Any:
        """Makes the mask of columns without padding, behind rows of one length."""

    @abstractmethod
    def make_seen(self, length: int, width: int, joint: bool) -> Any:
        """Makes the mask of rows of any length.

        Args:
            length: number of columns of the update.
            width: number of columns of the pool that are returned.
            joint: whether the new columns are returned behind them.
        """

    @abstractmethod
    def blank(self, arrays: Arrays, tokens: Bools) -> Arrays:
        """Returns K and V with zeros in the columns that are no tokens."""

    @abstractmethod
    def concatenate(self, old: Arrays | None, new: Arrays) -> Arrays:
        """Returns a copy of both, one behind the other."""

    @abstractmethod
    def make_single(self) -> Any:
        """Returns an empty single cache with the same options."""

    # --- tokens -------------------------------------------------------------------------

    def make_mask(self, length: int) -> Any:
        """Returns the mask of the next update; None if every query sees every column.

        Args:
            length: number of columns of the update.

        Returns:
            What broadcasts to [rows, 1, length, columns].
        """
        counts = self.count_tokens(length)
        joint = self.is_joint(counts, length)
        lowest, highest = self.get_range(counts)
        even = lowest == highest and min(counts) == length
        if length == 1 and (even or lowest >= (self.window or highest + 1)):
            return None
        if even and not joint:
            return self.make_causal(length)
        width = self.count_columns(max(self.lengths) if joint else highest)
        return self.make_seen(length, width, joint)

    def update(self, keys: Any, values: Any) -> Arrays:
        """Appends K [rows, heads, length, key_dim] and V.

        Returns:
            K and V of all rows, with the columns of the mask.
        """
        arrays, shape = (keys, values), keys.shape
        if len(shape) != 4 or shape[0] != len(self.lengths):
            raise MisuseError(
                f"update: K {list(shape)} is not [{len(self.lengths)}, heads, length,"
                " key_dim], with a row for each of the batch"
            )
        counts = self.count_tokens(shape[2])
        self.pool.accept(arrays)
        joined = None
        if self.is_joint(counts, shape[2]):
            width, tokens = self.count_columns(max(self.lengths)), arrays
            if self.coming is not None or self.left is not None:
                tokens = self.blank(arrays, self.find_tokens(counts, shape[2]))
            joined = self.concatenate(self.pool.read(width) if width else None, tokens)
        highest = self.get_range(counts)[1]
        self.pool.reserve(arrays, self.list_columns(), self.count_columns(highest))
        self.write(counts, arrays)
        self.advance(counts)
        return joined or self.pool.read(self.count_columns(highest))

    def write(self, counts: Sequence[int], arrays: Arrays) -> None:
        """Writes the tokens of an update to the pool, and no padding."""
        length, room = arrays[0].shape[2], self.pool.room
        if min(counts) < length:
            left = self.left or (0,) * len(counts)
            for row, (begin, count, padding) in enumerate(
                zip(self.lengths, counts, left, strict=True)
            ):
                own = arrays[0][row : row + 1], arrays[1][row : row + 1]
                self.pool.put(row, begin, cut(own, padding, padding + count))
        elif min(self.lengths) == max(self.lengths):
            for column, first, end in cut_ring(self.lengths[0], length, room):
                part = arrays if end - first == length else cut(arrays, first, end)
                self.pool.write_rows(column, part)
        else:
            skip = max(0, length - room)
            tokens = cut(arrays, skip, length) if skip else arrays
            self.pool.scatter(self.get_lengths(), skip, tokens)

    def is_joint(self, counts: Sequence[int], length: int) -> bool:
        """Returns whether an update returns its columns behind those of the pool: it may
        overwrite tokens that its first queries see."""
        if self.window is None or length == 1:
            return False
        return self.get_range(counts)[1] > self.window

    def get_range(self, counts: Sequence[int]) -> tuple[int, int]:
        """Returns the least and the most tokens of a row after an update."""
        if min(counts) == max(counts):
            return min(self.lengths) + counts[0], max(self.lengths) + counts[0]
        ends = [
            length + count for length, count in zip(self.lengths, counts, strict=True)
        ]
        return min(ends), max(ends)

    def count_columns(self, length: int) -> int:
        """Returns the number of columns in use by a row of so many tokens."""
        return length if self.window is None else min(length, self.window)

    def list_columns(self) -> list[int]:
        return [self.count_columns(length) for length in self.lengths]

    def size(self) -> tuple[int, ...]:
        """Returns for each row the number of tokens held."""
        return tuple(self.list_columns())

    def state(self) -> list[Arrays | None]:
        """Returns for each row K and V of the tokens held, in any order; None if there
        are none."""
        return [
            self.pool.read_slot(slot, 0, columns) if columns else None
            for slot, columns in enumerate(self.list_columns(), self.pool.first)
        ]

    def may_roll_back(self, counts: Sequence[int]) -> bool:
        pairs = zip(counts, self.lengths, strict=True)
        return self.window is None or not any(
            count and length > self.window for count, length in pairs
        )

    # --- rows ---------------------------------------------------------------------------

    def keep(self, rows: Sequence[int]) -> None:
        columns = self.list_columns()
        wanted = [self.pool.first + row for row in rows]
        self.pool.arrange(wanted, [columns[row] for row in rows])

    def check_join(self, other: Self) -> None:
        if self.window != other.window:
            raise MisuseError(f"extend: windows of {self.window} and {other.window}")
        forms = [self.pool.form, other.pool.form]
        if None not in forms and forms[0][1:] != forms[1][1:]:
            raise MisuseError(f"extend: rows of the form {forms[1]} to {forms[0]}")

    def join(self, other: Self) -> None:
        own, more = self.pool, other.pool
        sizes = other.list_columns()
        columns = [*self.list_columns(), *sizes]
        if own.arrays is None:
            self.pool, other.pool = more, own
            more.arrange([*[None] * own.rows, *more.list_slots()], columns)
            own.rows = len(sizes)
            return
        own.arrange([*own.list_slots(), *[None] * len(sizes)], columns)
        own.put_all(len(self.lengths), more, sizes)

    def take(self, row: int) -> Any:
        cache, offset, pool = self.make_single(), self.lengths[row], self.pool
        held = self.count_columns(offset)
        if held:
            cache.memory.adopt(pool.read_slot(pool.first + row, 0, pool.room), held)
            cache.offset = offset
        return cache

    @classmethod
    def check_singles(cls, caches: Sequence[Any]) -> None:
        check_stack(caches, cls.singles)
        windows = [get_window(cache) for cache in caches]
        if len(set(windows)) > 1:
            raise MisuseError(f"stack: different windows: {windows}")
        forms = {cache.memory.form for cache in caches} - {None}
        if len(forms) > 1:
            raise MisuseError(f"stack: caches of different forms: {[*forms]}")

    @classmethod
    def join_singles(cls, caches: Sequence[Any]) -> Self:
        memory, mask = caches[0].memory, caches[0].mask
        window = get_window(caches[0])
        batch = cls(len(caches), window, memory.step, memory.fill, mask)
        forms = {cache.memory.form for cache in caches} - {None}
        batch.fill_rows(caches, next(iter(forms), None))
        return batch

    def fill_rows(self, caches: Sequence[Any], form: tuple[Any, ...] | None) -> None:
        parts = [cache.view() for cache in caches]
        self.lengths = tuple(cache.offset for cache in caches)
        columns = self.list_columns()
        if form is not None:
            self.pool.form = (len(parts), *form[1:])
        held = [(row, part) for row, part in enumerate(parts) if part is not None]
        if held:  # with room for the next token
            self.pool.reserve(held[0][1], columns, max(columns) + 1)
        for row, part in held:
            self.pool.put(row, self.lengths[row] - columns[row], part)

    def clear(self) -> None:
        self.pool.clear()

    def make_empty(self, rows: int) -> Self:
        """Returns an empty batch with the same options."""
        return type(self)(rows, self.window, self.step, self.fill, self.mask)

    def clone(self) -> Self:
        self.check_settled("clone")
        other = self.make_empty(len(self.lengths))
        other.lengths, other.pool = self.lengths, self.pool.clone()
        return other

    def save(self) -> Saved:
        """Returns "keys" and "values" [rows, heads, columns, dim], None if there are no
        tokens; "lengths" and "window". Position p of a row is in column p mod columns."""
        self.check_settled("save")
        width = max(self.list_columns())
        keys, values = self.pool.copy(self.pool.read(width)) if width else (None, None)
        about = {"lengths": list(self.lengths), "window": self.window}
        return {"keys": keys, "values": values, **about}

    def check_form(self, saved: Saved) -> None:
        if saved["window"] != self.window:
            raise MisuseError(f"load: a window of {saved['window']}, not {self.window}")
        keys, lengths = saved["keys"], saved["lengths"]
        width = max(map(self.count_columns, lengths))
        if width and (
            keys is None or keys.shape[:1] != (len(lengths),) or keys.shape[2] < width
        ):
            raise MisuseError(
                f"load: keys are not those of rows of {tuple(lengths)} tokens"
            )

    def replace_rows(self, saved: Saved) -> None:
        keys, values = saved["keys"], saved["values"]
        columns = [self.count_columns(length) for length in saved["lengths"]]
        self.pool.clear()
        self.pool.rows = len(columns)
        if keys is not None:
            self.pool.accept((keys, values))
            self.pool.reserve((keys, values), columns, max(columns) + 1)
            self.pool.write_rows(0, (keys, values))

    def list_arrays(self) -> Sequence[Any]:
        return self.pool.arrays or ()


def get_window(cache: Single) -> int | None:
    return cache.window if isinstance(cache, RotatingCacheBase) else None
