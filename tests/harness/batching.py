"""A small, correct batch of caches on numpy: each row is a list of its tokens.

It copies everything at every step. The harness is tried on it, and mistakes are planted
in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from misbehaving import NumpyArrays

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts import CONTRACTS

OPERATIONS = frozenset(CONTRACTS["batched"].operations)
OF_STATES = frozenset(CONTRACTS["batched"].list_operations("batch-state"))


class BatchArrays(NumpyArrays):
    """Attention in which a query of padding may see nothing."""

    def attend(self, queries: Any, keys: Any, values: Any, mask: Any) -> Any:
        mask = mask | ~mask.any(-1, keepdims=True)
        return super().attend(queries, keys, values, mask)


class Single:
    """One row: a layer cache."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.window, self.chunk = config["window"], config["chunk"]
        self.keys: list[Any] = []  # of each token, [heads, dim]
        self.values: list[Any] = []

    @property
    def offset(self) -> int:
        return len(self.keys)

    def see(self, query: int) -> range:
        first = 0 if self.chunk is None else query - query % self.chunk
        if self.window:
            first = max(0, query - self.window + 1)
        return range(first, query + 1)

    def append(self, keys: Any, values: Any) -> None:
        """Adds tokens, [heads, tokens, dim]."""
        self.keys += list(np.array(keys).swapaxes(0, 1))
        self.values += list(np.array(values).swapaxes(0, 1))

    def make_mask(self, length: int, rows: int) -> Any:
        mask = np.zeros((rows, self.offset + length), bool)
        for row in range(length):
            mask[row, self.see(self.offset + row)] = True
        return mask

    def update(self, keys: Any, values: Any) -> Any:
        self.append(keys[0], values[0])
        return self.read()

    def read(self) -> Any:
        return np.stack(self.keys, 1)[None], np.stack(self.values, 1)[None]

    def state(self) -> Any:
        return self.read() if self.keys else None

    def size(self) -> int:
        return min(self.offset, self.window or self.offset)

    def trim(self, count: int) -> int:
        if count < 0:
            raise ValueError(f"trim of {count} tokens")
        if self.window and self.offset > self.window:
            return 0
        kept = max(0, self.offset - count)
        trimmed = self.offset - kept
        del self.keys[kept:], self.values[kept:]
        return trimmed

    def clone(self) -> Single:
        other = deepcopy(self)
        return other

    def free(self) -> None:
        self.keys, self.values = [], []


class SingleState:
    """One row with a recurrent state."""

    window = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        heads, dim = config["heads"], config["key_dim"]
        conv = (1, config["conv_width"] - 1, heads * dim)
        self.pair = (
            np.zeros(conv, config["dtype"]),
            np.zeros((1, heads, dim, config["value_dim"]), np.float32),
        )
        self.fresh, self.offset = self.pair, 0

    def read(self) -> Any:
        return tuple(array.copy() for array in self.pair)

    state = read

    def boundaries(self, length: int) -> list[int]:
        return [length]

    def write(self, conv: Any, delta: Any, length: int) -> None:
        if (conv.shape, delta.shape) != tuple(array.shape for array in self.pair):
            raise ValueError("another form")
        self.pair = conv.copy(), delta.copy()
        self.offset += length

    def trim(self, count: int) -> int:
        if count < 0:
            raise ValueError(f"trim of {count} tokens")
        return 0

    def clone(self) -> SingleState:
        return deepcopy(self)

    def free(self) -> None:
        self.pair, self.offset = self.fresh, 0


class Batch:
    """Rows of caches; K and V that come back are aligned on the right."""

    def __init__(self, rows: Sequence[Any]) -> None:
        if not rows:
            raise ValueError("a batch has at least one row")
        self.rows = list(rows)
        self.left: list[int] | None = None
        self.coming: list[int] | None = None

    @property
    def offsets(self) -> Any:
        left = self.left or [0] * len(self.rows)
        pairs = zip(self.rows, left, strict=True)
        return np.array([row.offset - padding for row, padding in pairs])

    def pad_left(self, padding: Sequence[int]) -> None:
        self.check_settled()
        if any(row.offset for row in self.rows) or len(padding) != len(self.rows):
            raise ValueError("padding on the left")
        if min(padding):
            raise ValueError("padding of all rows")
        self.left = list(padding)

    def pad_right(self, lengths: Sequence[int]) -> None:
        self.check_settled()
        if len(lengths) != len(self.rows) or min(lengths) < 1:
            raise ValueError("padding on the right")
        self.coming = list(lengths)

    def finalize(self) -> None:
        if self.coming is None or any(self.coming):
            raise ValueError("finalize")
        self.coming = None

    def check_settled(self) -> None:
        if self.coming is not None:
            raise ValueError("not finalized")

    def place(self, length: int) -> list[range]:
        """Returns the columns with tokens of each row."""
        if self.coming is not None:
            if length > max(self.coming):
                raise ValueError("more than announced")
            return [range(min(length, coming)) for coming in self.coming]
        if self.left is not None and max(self.left) >= length:
            raise ValueError("only padding")
        return [range(left, length) for left in self.left or [0] * len(self.rows)]

    def make_mask(self, length: int) -> Any:
        places = self.place(length)
        pairs = list(zip(self.rows, places, strict=True))
        width = max(row.offset + len(place) for row, place in pairs)
        mask = np.zeros((len(self.rows), 1, length, width), bool)
        for number, (row, place) in enumerate(pairs):
            shift = width - row.offset - len(place)
            for at, column in enumerate(place):
                seen = row.see(row.offset + at)
                mask[number, 0, column, [shift + one for one in seen]] = True
        return mask

    def update(self, keys: Any, values: Any) -> Any:
        places = self.place(keys.shape[2])
        for number, (row, place) in enumerate(zip(self.rows, places, strict=True)):
            columns = slice(place.start, place.stop)
            row.append(keys[number, :, columns], values[number, :, columns])
        self.note(places)
        return self.align("keys", keys), self.align("values", values)

    def note(self, places: Sequence[range]) -> None:
        """Notes that these columns have come."""
        if self.coming is not None:
            pairs = zip(self.coming, places, strict=True)
            self.coming = [coming - len(place) for coming, place in pairs]
        self.left = None

    def align(self, name: str, like: Any) -> Any:
        width = max(row.offset for row in self.rows)
        heads, dim = like.shape[1], like.shape[3]
        array = np.zeros((len(self.rows), heads, width, dim), like.dtype)
        for number, row in enumerate(self.rows):
            if row.offset:
                array[number, :, width - row.offset :] = np.stack(getattr(row, name), 1)
        return array

    def state(self) -> Any:
        self.check_settled()
        return [row.state() for row in self.rows]

    def size(self) -> Any:
        self.check_settled()
        return [row.size() for row in self.rows]

    def trim(self, count: int) -> int:
        return count if self.rollback([count] * len(self.rows)) else 0

    def rollback(self, counts: Sequence[int]) -> bool:
        self.check_settled()
        pairs = list(zip(self.rows, counts, strict=True))
        if any(row.clone().trim(count) < count for row, count in pairs):
            return False
        for row, count in pairs:
            row.trim(count)
        return True

    def filter(self, rows: Sequence[int]) -> None:
        if len(set(rows)) < len(rows):
            raise ValueError("a row twice")
        self.select(rows)

    def select(self, rows: Sequence[int]) -> None:
        self.check_settled()
        if not rows or max(rows) >= len(self.rows):
            raise ValueError("no such row")
        self.rows = [self.rows[row].clone() for row in rows]

    def repeat(self, times: int) -> None:
        self.select([row for row in range(len(self.rows)) for _ in range(times)])

    def extend(self, other: Batch) -> None:
        self.check_settled()
        other.check_settled()
        if other is self:
            raise ValueError("itself")
        self.rows += other.rows

    def extract(self, row: int) -> Single:
        self.check_settled()
        if row >= len(self.rows):
            raise ValueError("no such row")
        return self.rows[row].clone()

    def clone(self) -> Batch:
        self.check_settled()
        return deepcopy(self)

    def free(self) -> None:
        self.check_settled()
        for row in self.rows:
            row.free()

    def save(self) -> Any:
        self.check_settled()
        return deepcopy(self.rows)

    def load(self, saved: Any) -> None:
        self.rows = deepcopy(saved)


class StateBatch(Batch):
    """Rows with recurrent states."""

    def make_mask(self, length: int) -> Any:
        mask = np.zeros((len(self.rows), length), bool)
        for row, place in enumerate(self.place(length)):
            mask[row, place.start : place.stop] = True
        return None if mask.all() else mask

    def read(self) -> Any:
        pairs = [row.read() for row in self.rows]
        return tuple(np.concatenate(arrays) for arrays in zip(*pairs, strict=True))

    def write(self, conv: Any, delta: Any, length: int) -> None:
        places = self.place(length)
        for number, (row, place) in enumerate(zip(self.rows, places, strict=True)):
            one = slice(number, number + 1)
            row.write(conv[one], delta[one], len(place))
        self.note(places)

    def state(self) -> Any:
        self.check_settled()
        return [row.read() for row in self.rows]


class SingleList:
    """Several caches of one layer for one request."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    def trim(self, count: int) -> int:
        trimmed: int = min(part.clone().trim(count) for part in self.parts)
        for part in self.parts:
            part.trim(trimmed)
        return trimmed

    def clone(self) -> SingleList:
        return SingleList([part.clone() for part in self.parts])

    def free(self) -> None:
        for part in self.parts:
            part.free()


class ListBatch:
    """Several caches of one layer, each a batch."""

    def __init__(self, parts: Sequence[Batch]) -> None:
        self.parts = list(parts)

    @property
    def rows(self) -> list[Any]:
        return self.parts[0].rows

    def each(self, name: str, *given: Any) -> list[Any]:
        return [getattr(part, name)(*given) for part in self.parts]

    def pad_left(self, padding: Sequence[int]) -> None:
        self.each("pad_left", padding)

    def pad_right(self, lengths: Sequence[int]) -> None:
        self.each("pad_right", lengths)

    def finalize(self) -> None:
        self.each("finalize")

    def trim(self, count: int) -> int:
        return count if self.rollback([count] * len(self.rows)) else 0

    def rollback(self, counts: Sequence[int]) -> bool:
        if not all(part.clone().rollback(counts) for part in self.parts):
            return False
        self.each("rollback", counts)
        return True

    def filter(self, rows: Sequence[int]) -> None:
        self.each("filter", rows)

    def select(self, rows: Sequence[int]) -> None:
        self.each("select", rows)

    def repeat(self, times: int) -> None:
        self.each("repeat", times)

    def extend(self, other: ListBatch) -> None:
        for part, more in zip(self.parts, other.parts, strict=True):
            part.extend(more)

    def extract(self, row: int) -> SingleList:
        return SingleList(self.each("extract", row))

    def clone(self) -> ListBatch:
        return type(self)(self.each("clone"))

    def free(self) -> None:
        self.each("free")

    def save(self) -> Any:
        return self.each("save")

    def load(self, saved: Any) -> None:
        for part, own in zip(self.parts, saved, strict=True):
            part.load(own)


def open_list(config: Mapping[str, Any]) -> Any:
    """Opens a batch of lists, or a single list."""
    caches, parts = config["caches"], []
    for number, part in enumerate(config["parts"]):
        own = None if caches is None else [cache.parts[number] for cache in caches]
        parts.append(open_batch({**part, "rows": config["rows"], "caches": own}))
    alone = config["rows"] is None and caches is None
    return SingleList(parts) if alone else ListBatch(parts)


def open_batch(config: Mapping[str, Any]) -> Any:
    """Opens a batch or a single cache."""
    if config["kind"] == "batch-list":
        return open_list(config)
    is_state = config["kind"] == "batch-state"
    single, batch = (SingleState, StateBatch) if is_state else (Single, Batch)
    if config["caches"] is not None:
        return batch(config["caches"])
    if config["rows"] is None:
        return single(config)
    return batch([single(config) for _ in range(config["rows"])])


def make() -> Backend:
    kinds = {
        "batch-kv": Kind(OPERATIONS, {"chunk": (None, 3)}, refuses=True),
        "batch-rotating": Kind(OPERATIONS, refuses=True),
        "batch-state": Kind(OF_STATES, refuses=True),
        "batch-list": Kind(OPERATIONS, refuses=True),
    }
    return Backend(
        name="batching",
        device="numpy",
        contracts={"batched": kinds},
        arrays=BatchArrays(),
        open=open_batch,
        dtypes=("float32",),
    )
