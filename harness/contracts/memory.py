"""Checks the memory of a backend's caches against the memory that the contents need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.contracts.answers import read_index
from lockstep.harness.core.errors import Broken, clean
from lockstep.reference.batched import BatchedCache
from lockstep.reference.snapshot import Snapshot

Config = Mapping[str, Any]
"""The complete config of a program."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATE_ITEM_BYTES = 4
"""The delta state is always float32."""

HELD = ("bytes", "snapshots", "blocks")
"""The keys of the result of a cache's `held()`; "bytes" is required."""

BESIDE_ENTRIES = ("pool", "pool", "overlap", "lookahead")
"""The config fields whose sum is the largest number of tokens that a pooled cache keeps
beside its entries."""

OPERATION = "held"
"""The operation name in the signature of a memory divergence. The signature does not
depend on the step at which memory was checked."""


def count_token_bytes(config: Config) -> int:
    """Returns the size in bytes of one token's K and V in one layer."""
    dims = config["key_dim"] + config["value_dim"]
    return int(config["heads"] * dims * ITEM_BYTES[config["dtype"]])


def count_state_bytes(config: Config) -> int:
    """Returns the size in bytes of one state's conv and delta in one layer."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (config["conv_width"] - 1) * heads * key_dim * ITEM_BYTES[config["dtype"]]
    delta = heads * key_dim * config["value_dim"] * STATE_ITEM_BYTES
    return int(conv + delta)


def ask_held(caches: Iterable[Any]) -> dict[str, int]:
    """Calls `held()` of all caches and returns the sums."""
    total: Counter[str] = Counter(bytes=0)
    for cache in caches:
        sizes = cache.held()
        if not is_held(sizes):
            raise Broken(
                "malformed",
                f"held returned {clean(repr(sizes))}; expected a dict with integers of"
                f" 0 or more, for {', '.join(HELD)} (all but bytes are optional)",
                OPERATION,
            )
        total.update(sizes)
    return dict(total)


def is_held(sizes: Any) -> bool:
    return (
        isinstance(sizes, Mapping)
        and "bytes" in sizes
        and all(name in HELD for name in sizes)
        and all(
            number is not None and number >= 0
            for number in map(read_index, sizes.values())
        )
    )


@dataclass(frozen=True)
class Need:
    """The memory that the contents of some caches need.

    Attributes:
        contents: the bytes of all tokens and states; a token or state in several caches
            or snapshots counts once for each.
        growth: the bytes that caches may allocate ahead.
        least: the minimum number of bytes.
        counts: "snapshots" or "blocks" → the exact number.
    """

    contents: int
    growth: int = 0
    least: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def check(self, sizes: Mapping[str, int], factor: float) -> None:
        """Checks reported sizes against this need.

        Raises:
            Broken: the bytes exceed `factor` × (`contents` + `growth`) or are below
                `least`, or a count differs.
        """
        total, most = sizes["bytes"], factor * (self.contents + self.growth)
        message = None
        if total > most:
            message = (
                f"the caches hold {total:,} bytes, allowed {most:,.0f}: {factor:g}"
                f" times the sum of {self.contents:,} for their contents and"
                f" {self.growth:,} for growth"
            )
        elif total < self.least:
            message = (
                f"the caches report {total:,} bytes, but their contents take at least"
                f" {self.least:,}"
            )
        for name, number in self.counts.items():
            if sizes.get(name, number) != number:
                message = f"the caches report {sizes[name]} {name}; expected {number}"
        if message is not None:
            raise Broken("memory", message, OPERATION)


def check_released(sizes: Mapping[str, int], fresh: Mapping[str, int]) -> None:
    """Raises Broken("memory") if emptied caches hold more or less than fresh caches."""
    for name, number in sizes.items():
        if number != fresh[name]:
            raise Broken(
                "memory",
                f"after everything was closed and freed, the caches hold {number:,}"
                f" {name}; as many new caches hold {fresh[name]:,}",
                OPERATION,
            )


@dataclass
class Room:
    """The space that a cache of the backend may allocate, and the size of its content.

    Attributes:
        cache: the cache.
        rows: the maximum number of rows since the cache was opened or freed.
        columns: the maximum number of tokens that a row of the cache needed to hold at
            the same time since the cache was opened or freed.
        tokens: the current number of tokens.
        captured: the number of tokens in each capture that was not taken.
    """

    cache: Any
    rows: int = 0
    columns: int = 0
    tokens: int = 0
    captured: tuple[int, ...] = ()

    def grow(self, rows: int, columns: int) -> None:
        self.rows, self.columns = max(self.rows, rows), max(self.columns, columns)


class CacheMemory:
    """The memory that the caches of one program need, counted in tokens or in states.

    A state counts as one token.

    Args:
        config: a complete config.
        factor: see `Kind.held`; None if caches do not report their memory.

    Attributes:
        rooms: the space of each cache, by name or id.
    """

    def __init__(self, config: Config, factor: float | None) -> None:
        self.factor = factor
        self.is_state = config["kind"].endswith("state")
        self.step = 0 if self.is_state else config["step"]
        self.window: int | None = config["window"]
        self.unit = (count_state_bytes if self.is_state else count_token_bytes)(config)
        self.rooms: dict[Any, Room] = {}

    def list_caches(self) -> Iterable[Any]:
        return (room.cache for room in self.rooms.values())

    def weigh(self) -> Need:
        """Returns the need of all caches together."""
        rooms = self.rooms.values()
        return Need(
            self.unit * sum(room.rows * room.columns for room in rooms),
            self.unit * self.step * sum(room.rows for room in rooms),
        )

    def check(self) -> None:
        """Raises Broken("memory") if the caches hold more or less memory than their
        content needs; see `Need.check`."""
        if self.factor is not None:
            self.weigh().check(ask_held(self.list_caches()), self.factor)


# --- layer caches -----------------------------------------------------------------------


class LayerMemory(CacheMemory):
    """The memory of all caches that one program has opened, including caches that no
    longer have a name.

    A cache may keep space for the maximum number of tokens that it needed to hold. These
    include the tokens that an update returns.

    Args:
        is_exact: whether every token takes its full size in bytes; see `Need.least`.

    Attributes:
        fresh: the sizes that the first cache reported before it had content.
        stored: the bytes and the number of all stored snapshots.
        least: the number of tokens that any cache may hold: one state, or the tokens of a
            pooled cache that are in no entry yet, and those that a trim may need.
    """

    def __init__(self, config: Config, factor: float | None, is_exact: bool) -> None:
        super().__init__(config, factor)
        self.is_exact = is_exact
        sizes = [config.get(name) or 0 for name in BESIDE_ENTRIES]
        self.least = sum(sizes, int(self.is_state))
        self.fresh: Mapping[str, int] = {}
        self.stored = 0, 0

    def open(self, cache: Any) -> Room:
        """Returns the record of a cache; adds a record for a new cache."""
        if self.factor is not None and not self.rooms:
            self.fresh = ask_held([cache])
        new = Room(cache, 1, self.least, int(self.is_state))
        return self.rooms.setdefault(id(cache), new)

    def note(self, cache: Any, reference: Any, length: int) -> None:
        """Records the content of a cache after an operation.

        Args:
            cache: the cache.
            reference: the reference of this cache.
            length: the number of tokens that the operation wrote.
        """
        room = self.open(cache)
        room.tokens = 1 if self.is_state else reference.size()
        room.grow(1, self.least + room.tokens * (not self.is_state))
        if length and self.window is not None:
            # An update returns all new tokens, and the old tokens that the first new
            # token sees.
            seen = reference.visible(reference.offset - length)
            room.grow(1, len(seen) - 1 + length)
        captures = reference.captures.captured.values()
        room.captured = tuple(self.count_tokens(taken) for taken in captures)

    def count_tokens(self, snapshot: Snapshot) -> int:
        return 1 if self.is_state else len(snapshot.tokens)

    def reset(self, cache: Any) -> None:
        """Records that a cache was freed."""
        self.open(cache).columns = self.least

    def store(self, snapshots: Iterable[Snapshot]) -> None:
        """Records the sizes of the open snapshots and of all captures."""
        sizes = [self.count_tokens(snapshot) for snapshot in snapshots]
        sizes += [size for room in self.rooms.values() for size in room.captured]
        self.stored = self.unit * sum(sizes), len(sizes)

    def weigh(self) -> Need:
        need, (size, count) = super().weigh(), self.stored
        least = self.unit * sum(room.tokens for room in self.rooms.values())
        return replace(
            need,
            contents=need.contents + size,
            least=least * self.is_exact,
            counts={"snapshots": count},
        )

    def check_released(self) -> None:
        """Checks, after everything was freed, that the caches released their memory."""
        count = len(self.rooms)
        if count:
            fresh = {name: number * count for name, number in self.fresh.items()}
            check_released(ask_held(self.list_caches()), fresh)


# --- batches ----------------------------------------------------------------------------


class BatchMemory(CacheMemory):
    """The memory of the batches of one program, by name.

    A batch may keep space for its maximum number of rows times its maximum number of
    columns.

    Args:
        config: a complete config.
        factor: see `Kind.held`; None if batches do not report their memory.
        batches: name → batch of the backend; the caller keeps this mapping up to date.
    """

    def __init__(
        self, config: Config, factor: float | None, batches: Mapping[str, Any]
    ) -> None:
        super().__init__(config, factor)
        self.batches = batches

    def list_caches(self) -> Iterable[Any]:
        return self.batches.values()

    def note(
        self, references: Mapping[str, BatchedCache], length: int, changed: str
    ) -> None:
        """Records the sizes of all batches after an operation.

        Args:
            references: name → reference of the batch.
            length: the number of columns that the operation wrote.
            changed: the name of the batch that the operation changed.
        """
        for name in self.rooms.keys() - references.keys():
            del self.rooms[name]
        for name, reference in references.items():
            columns = self.count_columns(reference, length if name == changed else 0)
            self.get(name).grow(len(reference.rows), columns)

    def get(self, name: str) -> Room:
        """Returns the record of a batch; makes a new record if the name was reused."""
        batch = self.batches[name]
        room = self.rooms.get(name)
        if room is None or room.cache is not batch:
            room = self.rooms[name] = Room(batch)
        return room

    def reset(self, name: str) -> None:
        """Records that a batch was freed."""
        self.rooms.pop(name, None)

    def join(self, name: str, added: Room) -> None:
        """Records that a batch was extended by another batch.

        The extended batch may keep the space of both batches.

        Args:
            name: the name of the extended batch.
            added: the record of the other batch.
        """
        room = self.get(name)
        room.grow(room.rows + added.rows, added.columns)

    def count_columns(self, reference: BatchedCache, length: int) -> int:
        """Counts the columns of the longest row, including columns that an update
        returns."""
        if self.is_state:
            return 1
        longest = max(reference.offsets)
        if self.window is None:
            return longest
        return min(longest, self.window + max(0, length - 1))

    def check_released(
        self, open_batch: Callable[[int], Any], rows: Iterable[int]
    ) -> None:
        """Checks that freed batches hold exactly as much as fresh batches.

        Args:
            open_batch: opens a fresh batch with the given number of rows.
            rows: the numbers of rows of the fresh batches.
        """
        if self.factor is not None:
            fresh = ask_held(open_batch(count) for count in rows)
            check_released(ask_held(self.list_caches()), fresh)
