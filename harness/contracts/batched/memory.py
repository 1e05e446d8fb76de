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
    """

    def __init__(self, config: Config, factor: float | None) -> None:
        self.factor = factor
        self.window: int | None = config["window"]
        self.is_state = config["kind"] == "batch-state"
        self.step = 0 if self.is_state else config["step"]
        count = count_state_bytes if self.is_state else count_token_bytes
        self.unit = count(config)
        self.sizes: dict[str, Size] = {}
        self.batches: Mapping[str, Any] = {}

    def note(
        self,
        batches: Mapping[str, Any],
        rights: Mapping[str, BatchedCache],
        length: int,
        changed: str,
    ) -> None:
        """Notes the contents after an operation.

        Args:
            batches: of the backend, by name.
            rights: their references.
            length: the columns that the operation wrote.
            changed: the name of the batch that it changed.
        """
        self.batches = batches
        for name in self.sizes.keys() - rights.keys():
            del self.sizes[name]
        for name, right in rights.items():
            columns = self.count_columns(right, length if name == changed else 0)
            self.sizes.setdefault(name, Size()).grow(len(right.rows), columns)

    def forget(self, name: str, like: str | None = None) -> None:
        """Notes that a name stands for another batch; it may have the room of `like`."""
        room = self.sizes.get(like or "", Size())
        self.sizes[name] = Size(room.rows, room.columns)

    def join(self, name: str, other: str) -> None:
        """Notes that a batch was extended by another, whose room it may have."""
        joined = self.sizes.get(other, Size())
        own = self.sizes.setdefault(name, Size())
        own.grow(own.rows + joined.rows, joined.columns)

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
        if self.factor is None:
            return
        sizes = self.sizes.values()
        need = Need(
            self.unit * sum(size.rows * size.columns for size in sizes),
            self.unit * self.step * sum(size.rows for size in sizes),
        )
        need.check(ask_held(self.batches.values()), self.factor)

    def check_released(
        self, open_batch: Callable[[int], Any], rows: Iterable[int]
    ) -> None:
        """The same, after all were freed, beside fresh batches of as many rows."""
        if self.factor is not None:
            fresh = ask_held(open_batch(count) for count in rows)
            check_released(ask_held(self.batches.values()), fresh)
