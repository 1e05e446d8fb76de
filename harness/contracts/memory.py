"""What the caches of a backend hold, beside what their contents need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.core.errors import Broken, clean
from lockstep.reference.batched import BatchedCache
from lockstep.reference.snapshot import Snapshot

Config = Mapping[str, Any]
"""The complete config of a program."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATE_ITEM_BYTES = 4
"""The delta state is always float32."""

HELD = ("bytes", "snapshots", "blocks")
"""What a cache can tell of; the first it must."""

OPERATION = "held"
"""Stands for an operation in the signature of a divergence in memory: it does not depend
on the step at which memory was looked at."""


def count_token_bytes(config: Config) -> int:
    """Counts the bytes of K and V of one token in one layer."""
    dims = config["key_dim"] + config["value_dim"]
    return int(config["heads"] * dims * ITEM_BYTES[config["dtype"]])


def count_state_bytes(config: Config) -> int:
    """Counts the bytes of conv and delta of one state in one layer."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (config["conv_width"] - 1) * heads * key_dim * ITEM_BYTES[config["dtype"]]
    delta = heads * key_dim * config["value_dim"] * STATE_ITEM_BYTES
    return int(conv + delta)


def ask_held(caches: Iterable[Any]) -> dict[str, int]:
    """Asks caches what they hold, and adds it up."""
    total: Counter[str] = Counter(bytes=0)
    for cache in caches:
        sizes = cache.held()
        if not is_held(sizes):
            raise Broken(
                "malformed",
                f"held returned {clean(repr(sizes))}, not numbers of {', '.join(HELD)}",
                OPERATION,
            )
        total.update(sizes)
    return dict(total)


def is_held(sizes: Any) -> bool:
    return (
        isinstance(sizes, Mapping)
        and "bytes" in sizes
        and all(name in HELD for name in sizes)
        and all(type(number) is int and number >= 0 for number in sizes.values())
    )


@dataclass(frozen=True)
class Need:
    """What the contents of some caches need.

    Attributes:
        contents: bytes of the tokens and states that are held, each once for each cache
            and snapshot that holds it.
        growth: bytes of what may be allocated ahead.
        least: bytes that are held at least.
        counts: "snapshots" or "blocks" → how many there are.
    """

    contents: int
    growth: int = 0
    least: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def check(self, sizes: Mapping[str, int], factor: float) -> None:
        """Raises Broken("memory") if caches hold more than `factor` times this allows, or
        tell something else than what there is."""
        total, most = sizes["bytes"], factor * (self.contents + self.growth)
        message = None
        if total > most:
            message = (
                f"the caches hold {total:,} bytes, allowed {most:,.0f}: {factor:g} times"
                f" the {self.contents:,} of their contents and {self.growth:,} for growth"
            )
        elif total < self.least:
            message = f"the caches tell {total:,} bytes, but contain {self.least:,}"
        for name, number in self.counts.items():
            if sizes.get(name, number) != number:
                message = f"the caches hold {sizes[name]} {name}, not {number}"
        if message is not None:
            raise Broken("memory", message, OPERATION)


def check_released(sizes: Mapping[str, int], fresh: Mapping[str, int]) -> None:
    """Raises Broken("memory") if caches without content hold more than fresh ones."""
    for name, number in sizes.items():
        if number != fresh[name]:
            raise Broken(
                "memory",
                f"the caches hold {number:,} {name} after everything was closed and"
                f" freed; as many fresh ones hold {fresh[name]:,}",
                OPERATION,
            )


class CacheMemory:
    """What the caches of one program need: in tokens, or in states, which count as one.

    Args:
        config: a complete config.
        factor: see `Kind.held`; None if caches do not tell.
    """

    def __init__(self, config: Config, factor: float | None) -> None:
        self.factor = factor
        self.is_state = config["kind"].endswith("state")
        self.step = 0 if self.is_state else config["step"]
        self.window: int | None = config["window"]
        self.unit = (count_state_bytes if self.is_state else count_token_bytes)(config)

    def list_caches(self) -> Iterable[Any]:
        raise NotImplementedError

    def weigh(self) -> Need:
        """Counts what is needed for all caches."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises Broken("memory") if the caches hold too much."""
        if self.factor is not None:
            self.weigh().check(ask_held(self.list_caches()), self.factor)


# --- layer caches -----------------------------------------------------------------------


@dataclass
class OpenedCache:
    """A cache of the backend.

    Attributes:
        cache: the cache.
        peak: the most tokens that it had to hold at once since it was opened or freed.
        tokens: how many it holds now.
        captured: the tokens in each of its captures that were not taken.
    """

    cache: Any
    peak: int
    tokens: int
    captured: tuple[int, ...] = ()


class LayerMemory(CacheMemory):
    """All caches that one program has opened, also those whose name another one has got.

    A cache may keep room for as many tokens as it had to hold at once: for those that an
    update returns, too.

    Args:
        is_exact: whether every token takes its bytes, see `Need.least`.

    Attributes:
        opened: the caches, by id.
        stored: bytes of the snapshots that are stored, and how many there are.
    """

    def __init__(self, config: Config, factor: float | None, is_exact: bool) -> None:
        super().__init__(config, factor)
        self.is_exact, self.least = is_exact, int(self.is_state)
        self.opened: dict[int, OpenedCache] = {}
        self.fresh: Mapping[str, int] = {}
        self.stored: tuple[int, int] | None = None

    def list_caches(self) -> Iterable[Any]:
        return (opened.cache for opened in self.opened.values())

    def open(self, cache: Any, origin: Any = None) -> OpenedCache:
        """Finds a cache, or notes a new one.

        Args:
            cache: the cache.
            origin: the cache that it was cloned from, whose room it may have.
        """
        if self.factor is not None and not self.opened:
            self.fresh = ask_held([cache])
        new = OpenedCache(cache, self.least, self.least)
        opened = self.opened.setdefault(id(cache), new)
        if origin is not None:
            opened.peak = self.open(origin).peak
        return opened

    def note(self, cache: Any, reference: Any, length: int) -> None:
        """Notes the content of a cache after an operation.

        Args:
            cache: the cache.
            reference: its reference.
            length: the number of tokens that the operation wrote.
        """
        opened = self.open(cache)
        opened.tokens = 1 if self.is_state else reference.size()
        opened.peak = max(opened.peak, opened.tokens)
        if length and self.window is not None:
            # An update returns, with all new tokens, the old ones that the first sees.
            seen = reference.visible(reference.offset - length)
            opened.peak = max(opened.peak, len(seen) - 1 + length)
        captures = reference.captures.captured.values()
        opened.captured = tuple(self.count_tokens(taken) for taken in captures)

    def count_tokens(self, snapshot: Snapshot) -> int:
        return 1 if self.is_state else len(snapshot.tokens)

    def reset(self, cache: Any) -> None:
        """Notes that a cache was freed."""
        self.open(cache).peak = self.least

    def store(self, snapshots: Iterable[Snapshot]) -> None:
        """Notes the open snapshots, and adds the captures."""
        sizes = [self.count_tokens(snapshot) for snapshot in snapshots]
        sizes += [size for opened in self.opened.values() for size in opened.captured]
        self.stored = self.unit * sum(sizes), len(sizes)

    def weigh(self) -> Need:
        size, count = self.stored or (0, 0)
        caches = self.opened.values()
        return Need(
            self.unit * sum(opened.peak for opened in caches) + size,
            self.unit * self.step * len(caches),
            self.unit * sum(opened.tokens for opened in caches) * self.is_exact,
            {"snapshots": count},
        )

    def check(self) -> None:
        if self.stored is not None:
            super().check()

    def check_released(self) -> None:
        """Does the same after everything was closed and freed."""
        count = len(self.opened)
        if count:
            fresh = {name: number * count for name, number in self.fresh.items()}
            check_released(ask_held(self.list_caches()), fresh)


# --- batches ----------------------------------------------------------------------------


@dataclass
class BatchRoom:
    """The most rows and columns that a batch had to hold at once since it was made."""

    batch: Any
    rows: int = 0
    columns: int = 0

    def grow(self, rows: int, columns: int) -> None:
        self.rows, self.columns = max(self.rows, rows), max(self.columns, columns)


class BatchMemory(CacheMemory):
    """The batches of one program, by name.

    A batch may keep room for as many rows as it had at once, each as long as the longest
    had to be.

    Args:
        batches: of the backend, by name, as they are at any time.
    """

    def __init__(
        self, config: Config, factor: float | None, batches: Mapping[str, Any]
    ) -> None:
        super().__init__(config, factor)
        self.batches = batches
        self.rooms: dict[str, BatchRoom] = {}

    def list_caches(self) -> Iterable[Any]:
        return self.batches.values()

    def note(
        self, references: Mapping[str, BatchedCache], length: int, changed: str
    ) -> None:
        """Notes the contents after an operation.

        Args:
            references: by name.
            length: the columns that the operation wrote.
            changed: the name of the batch that it changed.
        """
        for name in self.rooms.keys() - references.keys():
            del self.rooms[name]
        for name, reference in references.items():
            columns = self.count_columns(reference, length if name == changed else 0)
            self.get(name).grow(len(reference.rows), columns)

    def get(self, name: str) -> BatchRoom:
        """Returns the room of a batch; another one may have got its name."""
        batch = self.batches[name]
        room = self.rooms.get(name)
        if room is None or room.batch is not batch:
            room = self.rooms[name] = BatchRoom(batch)
        return room

    def reset(self, name: str) -> None:
        """Notes that a batch was freed."""
        self.rooms.pop(name, None)

    def join(self, name: str, added: BatchRoom) -> None:
        """Notes that a batch was extended by another, whose room it may have."""
        room = self.get(name)
        room.grow(room.rows + added.rows, added.columns)

    def count_columns(self, reference: BatchedCache, length: int) -> int:
        """Counts the columns of the longest row, with those that an update returns."""
        if self.is_state:
            return 1
        longest = max(reference.offsets)
        if self.window is None:
            return longest
        return min(longest, self.window + max(0, length - 1))

    def weigh(self) -> Need:
        rooms = self.rooms.values()
        return Need(
            self.unit * sum(room.rows * room.columns for room in rooms),
            self.unit * self.step * sum(room.rows for room in rooms),
        )

    def check_released(
        self, open_batch: Callable[[int], Any], rows: Iterable[int]
    ) -> None:
        """Does the same after all were freed, beside fresh batches of as many rows."""
        if self.factor is not None:
            fresh = ask_held(open_batch(count) for count in rows)
            check_released(ask_held(self.list_caches()), fresh)
