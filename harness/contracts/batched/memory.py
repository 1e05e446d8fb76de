"""What the batches of one program hold, beside what the reference's tokens need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.harness.contracts.memory import (
    Config,
    Need,
    ask_held,
    check_released,
    count_state_bytes,
    count_token_bytes,
)
from lockstep.reference.batched import BatchedCache


@dataclass
class Size:
    """The most rows and columns that a batch had to hold at once since it was made."""

    batch: Any
    rows: int = 0
    columns: int = 0

    def grow(self, rows: int, columns: int) -> None:
        self.rows, self.columns = max(self.rows, rows), max(self.columns, columns)


class BatchMemory:
    """The batches of one program, by name.

    A batch may keep room for as many rows as it had at once, each as long as the longest
    had to be. A state counts as one column of its size.

    Args:
        config: a complete config.
        factor: see `Kind.held`; None if batches do not tell.
        batches: of the backend, by name, as they are at any time.
    """

    def __init__(
        self, config: Config, factor: float | None, batches: Mapping[str, Any]
    ) -> None:
        self.factor, self.batches = factor, batches
        self.window: int | None = config["window"]
        self.is_state = config["kind"] == "batch-state"
        self.step = 0 if self.is_state else config["step"]
        count = count_state_bytes if self.is_state else count_token_bytes
        self.unit = count(config)
        self.sizes: dict[str, Size] = {}

    def note(self, rights: Mapping[str, BatchedCache], length: int, changed: str) -> None:
        """Notes the contents after an operation.

        Args:
            rights: the references, by name.
            length: the columns that the operation wrote.
            changed: the name of the batch that it changed.
        """
        for name in self.sizes.keys() - rights.keys():
            del self.sizes[name]
        for name, right in rights.items():
            columns = self.count_columns(right, length if name == changed else 0)
            self.get(name).grow(len(right.rows), columns)

    def get(self, name: str) -> Size:
        """Returns the size of a batch; another one may have got its name."""
        batch = self.batches[name]
        size = self.sizes.get(name)
        if size is None or size.batch is not batch:
            size = self.sizes[name] = Size(batch)
        return size

    def reset(self, name: str) -> None:
        """Notes that a batch was freed."""
        self.sizes.pop(name, None)

    def join(self, name: str, other: Size) -> None:
        """Notes that a batch was extended by another, whose room it may have."""
        own = self.get(name)
        own.grow(own.rows + other.rows, other.columns)

    def count_columns(self, right: BatchedCache, length: int) -> int:
        """Counts the columns of the longest row, with those that an update returns."""
        if self.is_state:
            return 1
        longest = max(right.offsets)
        if self.window is None:
            return longest
        return min(longest, self.window + max(0, length - 1))

    def check(self) -> None:
        """Raises Broken("memory") if the batches hold too much."""
        if self.factor is not None:
            self.weigh().check(ask_held(self.batches.values()), self.factor)

    def weigh(self) -> Need:
        """Counts what is needed for the batches."""
        sizes = self.sizes.values()
        return Need(
            self.unit * sum(size.rows * size.columns for size in sizes),
            self.unit * self.step * sum(size.rows for size in sizes),
        )

    def check_released(
        self, open_batch: Callable[[int], Any], rows: Iterable[int]
    ) -> None:
        """The same, after all were freed, beside fresh batches of as many rows."""
        if self.factor is not None:
            fresh = ask_held(open_batch(count) for count in rows)
            check_released(ask_held(self.batches.values()), fresh)
