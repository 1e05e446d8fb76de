"""A cache on numpy with several mistakes, each of which shows in many ways."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from lockstep.harness.backends.backend import Backend, Kind
from tests.harness.misbehaving import PLAIN, Array, NumpyArrays, Pair

BUGS = ("clone", "trim", "window", "restore", "view")

OPERATIONS = frozenset(
    {"update", "state", "view", "size", "trim", "clone", "free", "snapshot", "restore"}
)

ROOM = 64


class Snapshot(NamedTuple):
    begin: int
    end: int
    keys: Array
    values: Array

    @property
    def range(self) -> tuple[int, int]:
        return self.begin, self.end

    offset = range


class Buffered:
    """A full or a rotating cache that writes into buffers and keeps every token.

    bugs: `clone` shares the buffers, `trim` takes one token too many, the `window` is one
    too wide, `restore` leaves the last token of a snapshot out, and `view` returns what
    it returned first.
    """

    def __init__(self, window: int | None, bugs: Collection[str]) -> None:
        self.window, self.bugs = window, bugs
        self.pair: Pair | None = None
        self.offset = 0
        self.viewed: Pair | None = None

    def make_mask(self, length: int, rows: int) -> Any:
        wide = self.offset + length
        mask = np.tri(rows, wide, self.offset, dtype=np.bool_)
        if self.window is not None:
            width = self.window + ("window" in self.bugs)
            mask &= ~np.tri(rows, wide, self.offset - width, dtype=np.bool_)
        mask[length:] = False
        return mask

    def write(self, keys: Array, values: Array) -> None:
        end = self.offset + keys.shape[2]
        room = -(-end // ROOM) * ROOM
        if self.pair is None or self.pair[0].shape[2] < room:
            self.pair = self.grow(keys, room), self.grow(values, room, 1)
        for buffer, new in zip(self.pair, (keys, values), strict=True):
            buffer[:, :, self.offset : end] = new
        self.offset = end

    def grow(self, new: Array, room: int, which: int = 0) -> Array:
        """A buffer for what is written, with what it holds so far."""
        batch, heads, _, dim = new.shape
        buffer = np.zeros((batch, heads, room, dim), new.dtype)
        if self.pair is not None:
            buffer[:, :, : self.offset] = self.pair[which][:, :, : self.offset]
        return buffer

    def slice(self) -> Pair | None:
        if self.pair is None or not self.offset:
            return None
        keys, values = self.pair
        return keys[:, :, : self.offset], values[:, :, : self.offset]

    def update(self, keys: Array, values: Array) -> Any:
        self.write(keys, values)
        return self.slice()

    def state(self) -> Any:
        held = self.slice()
        return None if held is None else (held[0].copy(), held[1].copy())

    def view(self) -> Any:
        if "view" not in self.bugs:
            return self.slice()
        self.viewed = self.viewed or self.slice()
        return self.viewed

    def size(self) -> int:
        return self.offset if self.window is None else min(self.offset, self.window)

    def may_rewind(self) -> bool:
        return self.window is None or self.offset <= self.window

    def trim(self, count: int) -> int:
        trimmed = min(count, self.offset) if self.may_rewind() else 0
        more = "trim" in self.bugs and 0 < trimmed < self.offset
        self.offset -= trimmed + more
        return trimmed

    def clone(self) -> Buffered:
        copy = Buffered(self.window, self.bugs)
        copy.offset = self.offset
        if self.pair is not None:
            shares = "clone" in self.bugs
            keys, values = self.pair
            copy.pair = self.pair if shares else (keys.copy(), values.copy())
        return copy

    def free(self) -> None:
        self.pair, self.offset, self.viewed = None, 0, None

    def snapshot(self, begin: int) -> Snapshot | None:
        begin = max(0, begin)
        held = self.slice()
        if held is None or begin >= self.offset:
            return None
        first = begin if self.window is None else 0
        keys, values = (one[:, :, first:].copy() for one in held)
        return Snapshot(begin, self.offset, keys, values)

    def can_restore(self, snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is None:
            rewinds = 0 <= target < self.offset and self.may_rewind()
            return target == self.offset or rewinds
        if self.window is None:
            return 0 <= target <= snapshot.end and self.offset >= snapshot.begin
        short = 0 <= target < snapshot.end <= self.window
        return target == snapshot.end or short

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None:
            self.offset = snapshot.begin if self.window is None else 0
            self.write(snapshot.keys, snapshot.values)
            self.offset -= "restore" in self.bugs
        self.offset = min(self.offset, target)
        return True


def declare(*bugs: str) -> Backend:
    return Backend(
        name="buggy",
        device="cpu",
        contracts={
            "layer": {
                "kv": Kind(OPERATIONS, PLAIN),
                "rotating": Kind(OPERATIONS, {**PLAIN, "window": (2, 1, 3)}),
            }
        },
        arrays=NumpyArrays(),
        open=lambda config: Buffered(config["window"], bugs),
        lifetime="until-write",
        versions={"numpy": np.__version__},
    )


def correct() -> Backend:
    return declare()


def all_bugs() -> Backend:
    return declare(*BUGS)


def clone() -> Backend:
    return declare("clone")
