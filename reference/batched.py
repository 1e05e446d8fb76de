"""A cache of several requests; each row is a layer cache with the tokens of one request.

This reference stores no padding. An implementation keeps rows of different lengths in one
array and pads the gaps; no query may see the padding, and no row may depend on another
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .list import ListCache, Part

Row = Part | ListCache


class BatchedCache:
    """The caches of several requests, one for each row.

    Args:
        rows: the caches, at least one, all of the same kind; a `ListCache` for a layer
            that needs several caches. The caller may not use the caches again.

    Attributes:
        coming: between `pad_right` and `finalize`, the number of tokens that each row
            still gets; otherwise None.
        announced: the number of columns that were announced and have not come yet.
        width: number of columns written since the batch was empty, including padding. An
            implementation that never closes a gap has this number of columns.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        if not rows:
            raise ValueError("a batch has at least one row")
        self.rows: list[Any] = list(rows)
        self.coming: list[int] | None = None
        self.announced = 0
        self.width = max(row.offset for row in rows)

    @property
    def offsets(self) -> list[int]:
        """The number of tokens written minus tokens trimmed, for each row."""
        return [row.offset for row in self.rows]

    # --- tokens -------------------------------------------------------------------------

    def count_tokens(self, length: int, left: Sequence[int] | None = None) -> list[int]:
        """Returns the number of tokens in an update of `length` columns, for each row.

        Args:
            length: number of columns, at least 1.
            left: number of padding columns before the tokens of each row. Allowed if the
                batch is empty; at least one row has no padding.
        """
        if self.coming is not None:
            if left is not None or length > self.announced:
                raise ValueError(f"update: {self.announced} columns are still announced")
            return [min(length, coming) for coming in self.coming]
        if left is None:
            return [length] * len(self.rows)
        if any(self.offsets) or len(left) != len(self.rows):
            raise ValueError("update: only an empty batch is padded on the left")
        if min(left) or max(left) >= length:
            raise ValueError(f"update: {length} columns cannot have the padding {left}")
        return [length - padding for padding in left]

    def update(self, length: int, tags: Sequence[Sequence[int]]) -> None:
        """Appends `length` columns.

        Args:
            length: number of columns.
            tags: for each row, the tags of its tokens.
        """
        for row, row_tags in zip(self.rows, tags, strict=True):
            row.update(row_tags)
        self.width += length
        if self.coming is not None:
            pairs = zip(self.coming, tags, strict=True)
            self.coming = [coming - len(row_tags) for coming, row_tags in pairs]
            self.announced -= length

    def pad_right(self, lengths: Sequence[int]) -> None:
        """Announces the number of tokens that the next updates add to each row.

        These updates together have as many columns as the longest row has tokens, even if
        that row leaves; the columns after the tokens of a row are padding.
        """
        self.check_settled()
        if len(lengths) != len(self.rows) or min(lengths) < 1:
            raise ValueError(f"pad_right: lengths {lengths} of {len(self.rows)} rows")
        self.coming, self.announced = list(lengths), max(lengths)

    def finalize(self) -> None:
        """Ends the padding on the right, after all announced columns were added."""
        if self.coming is None or self.announced:
            raise ValueError("finalize: announced columns are missing")
        self.coming = None

    def check_settled(self) -> None:
        """Raises ValueError between `pad_right` and `finalize`."""
        if self.coming is not None:
            raise ValueError("the padding on the right is not complete")

    def trim(self, counts: Sequence[int]) -> bool:
        """Removes the last counts[row] tokens of each row, at most all its tokens.

        Returns:
            False if a row refuses. Then nothing changes.
        """
        self.check_settled()
        pairs = list(zip(self.rows, counts, strict=True))
        assert all(0 <= count <= row.offset for row, count in pairs), f"trim: {counts}"
        if any(row.clone().trim(count) < count for row, count in pairs):
            return False
        for row, count in pairs:
            row.trim(count)
        self.width -= min(counts)
        return True

    # --- rows ---------------------------------------------------------------------------

    def select(self, numbers: Sequence[int]) -> None:
        """Keeps these rows, in this order. A number that appears twice gives two rows.
        The announced tokens of a row are still written.
        """
        check_rows(numbers, len(self.rows))
        self.rows = [self.rows[number].clone() for number in numbers]
        if self.coming is not None:
            self.coming = [self.coming[number] for number in numbers]

    def filter(self, numbers: Sequence[int]) -> None:
        """Keeps these rows, in this order, each at most once."""
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"filter: a row twice in {numbers}")
        self.select(numbers)

    def extend(self, joined: BatchedCache) -> None:
        """Adds the rows of another batch, which the caller may not use again."""
        if joined is self:
            raise ValueError("extend: a batch cannot be extended by itself")
        self.check_settled()
        joined.check_settled()
        self.rows += joined.rows
        self.width = max(self.width, joined.width)

    def extract(self, number: int) -> Row:
        """Returns an independent cache with the tokens that one row has so far."""
        check_rows([number], len(self.rows))
        row: Row = self.rows[number].clone()
        return row

    def clone(self) -> Self:
        """Returns an independent batch with the same rows."""
        self.check_settled()
        copy = type(self)([row.clone() for row in self.rows])
        copy.width = self.width
        return copy

    def free(self) -> None:
        """Empties every row."""
        self.check_settled()
        for row in self.rows:
            row.free()
        self.width = 0


def check_rows(numbers: Sequence[int], count: int) -> None:
    """Raises ValueError unless `numbers` are valid row numbers of `count` rows.

    At least one number is required.
    """
    if not numbers or any(number not in range(count) for number in numbers):
        raise ValueError(f"rows {list(numbers)} of {count}")
