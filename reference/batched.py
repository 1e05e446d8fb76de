"""Several requests in one cache: each row is the layer cache of its own tokens.

Padding does not exist. An implementation keeps rows of different lengths in one array and
fills the gaps; no query may see the gaps, and no row may depend on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .list import ListCache, Part

Row = Part | ListCache


class BatchedCache:
    """The caches of several requests, one for each row.

    Args:
        rows: the caches, at least one, all of one kind; of a layer that needs several
            caches, a list of them. They are used up.

    Attributes:
        coming: between `pad_right` and `finalize`, how many tokens each row still gets.
        width: columns that were written since the batch was empty, padding included. An
            implementation that never closes a gap has so many.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        if not rows:
            raise ValueError("a batch has at least one row")
        self.rows: list[Any] = list(rows)
        self.coming: list[int] | None = None
        self.width = max(row.offset for row in rows)

    @property
    def offsets(self) -> list[int]:
        """For each row the number of tokens written, less those trimmed."""
        return [row.offset for row in self.rows]

    # --- tokens -------------------------------------------------------------------------

    def count_tokens(self, length: int, left: Sequence[int] | None = None) -> list[int]:
        """Returns how many of `length` columns are tokens, for each row.

        Args:
            length: at least 1.
            left: so many columns of each row come before its tokens and are padding.
                Only into an empty batch, and one row has none.
        """
        if self.coming is not None:
            if left is not None or length > max(self.coming):
                raise ValueError(
                    f"update: {max(self.coming)} columns are still announced"
                )
            return [min(length, coming) for coming in self.coming]
        if left is None:
            return [length] * len(self.rows)
        if any(self.offsets) or len(left) != len(self.rows):
            raise ValueError("update: only an empty batch is padded on the left")
        if min(left) or max(left) >= length:
            raise ValueError(f"update: {length} columns cannot have the padding {left}")
        return [length - padding for padding in left]

    def update(self, length: int, tags: Sequence[Sequence[int]]) -> None:
        """Appends `length` columns, with tokens of these tags for each row."""
        for row, row_tags in zip(self.rows, tags, strict=True):
            row.update(row_tags)
        self.width += length
        if self.coming is not None:
            pairs = zip(self.coming, tags, strict=True)
            self.coming = [coming - len(row_tags) for coming, row_tags in pairs]

    def pad_right(self, lengths: Sequence[int]) -> None:
        """Announces the tokens that the next updates bring to each row; they have as many
        columns as the longest row needs, and the columns after a row's tokens are
        padding."""
        self.check_settled()
        if len(lengths) != len(self.rows) or min(lengths) < 1:
            raise ValueError(f"pad_right: lengths {lengths} of {len(self.rows)} rows")
        self.coming = list(lengths)

    def finalize(self) -> None:
        """Ends the padding on the right. All announced tokens must be there."""
        if self.coming is None or any(self.coming):
            raise ValueError("finalize: what was announced is not there")
        self.coming = None

    def check_settled(self) -> None:
        """Raises ValueError between `pad_right` and `finalize`."""
        if self.coming is not None:
            raise ValueError("the padding on the right was not finalized")

    def trim(self, counts: Sequence[int]) -> bool:
        """Removes the last tokens of each row, as many as `counts` says, at most all.

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
        """Keeps these rows, in this order. One that is named twice becomes two."""
        self.check_settled()
        check_rows(numbers, len(self.rows))
        self.rows = [self.rows[number].clone() for number in numbers]

    def filter(self, numbers: Sequence[int]) -> None:
        """Keeps these rows, in this order, each at most once."""
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"filter: a row twice in {numbers}")
        self.select(numbers)

    def extend(self, joined: BatchedCache) -> None:
        """Adds the rows of another batch, which is used up."""
        if joined is self:
            raise ValueError("extend: a batch cannot be extended by itself")
        self.check_settled()
        joined.check_settled()
        self.rows += joined.rows
        self.width = max(self.width, joined.width)

    def extract(self, number: int) -> Row:
        """Returns an independent cache with the tokens of one row."""
        self.check_settled()
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
    """Raises ValueError unless these are some of so many rows."""
    if not numbers or any(number not in range(count) for number in numbers):
        raise ValueError(f"rows {list(numbers)} of {count}")
