"""Reports the contents of a block manager in the types of the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.impl.shared.block_pool import BlockPool
from lockstep.impl.shared.paged import BlockManager, PagedRequest
from lockstep.impl.shared.paged_host import TieredManager
from lockstep.impl.shared.paged_memory import BlockMemory, StoringManager
from lockstep.impl.shared.prefix_hash import Extra


class Entry(NamedTuple):
    """A prefix that can be hit in one group, and the block in which it ends."""

    group: int
    namespace: str | None
    tokens: tuple[int, ...]
    block: int
    adapter: str | None
    extras: Sequence[Extra]


class Pool(NamedTuple):
    """The states of the blocks.

    Attributes:
        references: block → number of tables, transfers and launched steps that hold it.
        free: the free blocks.
        cached: the cached blocks.
        pinned: the blocks that transfers and launched steps hold; a block occurs once for
            each of them.
        idle: the free and the cached blocks of the host.
    """

    references: Mapping[int, int]
    free: Sequence[int]
    cached: Sequence[int]
    pinned: Sequence[int] = ()
    idle: Sequence[int] = ()


class Telling(TieredManager):
    """A block manager that also stores the tokens of each key, for reports.

    Attributes:
        prefixes: key → its prefix, as an entry of group 0 and block 0.
        noted: the events since the last call of `events`.
    """

    def __init__(self, *options: Any, **keywords: Any) -> None:
        super().__init__(*options, **keywords)
        self.prefixes: dict[bytes, Entry] = {}
        self.noted: list[tuple[str, Entry]] = []
        self.blocks.note = self.note

    def settle(self, request: PagedRequest) -> None:
        for number, key in enumerate(request.hash.extend(request.tokens), 1):
            end, (namespace, adapter) = number * self.unit, request.hash.names
            tokens, extras = request.tokens[:end], request.hash.list_extras(0, end)
            self.prefixes[key] = Entry(0, namespace, tuple(tokens), 0, adapter, extras)
        super().settle(request)

    def save(self) -> Any:
        saved = super().save()
        return None if saved is None else (saved, dict(self.prefixes))

    def restore(self, saved: Any) -> None:
        base, self.prefixes = saved[0], dict(saved[1])
        super().restore(base)

    def note(self, name: str, group: int, key: bytes, block: int) -> None:
        entry = self.prefixes[key]._replace(group=group, block=block)
        self.noted.append((name, entry))

    def pool(self) -> Pool:
        counted = enumerate(self.blocks.references)
        references = {block: count for block, count in counted if count}
        free, cached = list(self.blocks.free), list(self.blocks.cached)
        idle = [*self.host.free, *self.host.cached]
        pinned = [*self.pinned.elements(), *self.in_flight.elements()]
        return Pool(references, free, cached, pinned, idle)

    def entries(self) -> list[Entry]:
        return self.list_entries(self.blocks)

    def host_entries(self) -> list[Entry]:
        return self.list_entries(self.host)

    def list_entries(self, pool: BlockPool) -> list[Entry]:
        return [
            self.prefixes[key]._replace(group=group, block=block)
            for group, entries in enumerate(pool.entries)
            for key, block in entries.items()
        ]

    def events(self) -> list[tuple[str, Entry]]:
        noted, self.noted = self.noted, []
        return noted


class TellingStorage(Telling, StoringManager):
    """A block manager that also stores the tokens of each key, and K and V."""


def open_paged(
    config: Mapping[str, Any],
    memory: BlockMemory | None,
    host_memory: BlockMemory | None = None,
) -> BlockManager:
    """Opens the cache for a complete config of the paged contract.

    Args:
        config: see `harness.contracts.paged`.
        memory, host_memory: the memories of the device blocks and of the host blocks;
            None if the harness stores K and V.
    """
    names = "blocks", "max_length", "hash_block", "prefix_cache", "drop_last", "overlap"
    options = share_out(config), *(config[name] for name in names)
    if memory is None:
        return Telling(*options, host=config["host"])
    more = {"host_memory": host_memory, "reads": config["reads"]}
    return TellingStorage(memory, *options, **more)


def share_out(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the groups of a config. "full" groups are distributed across the ranks."""
    ranks = {name: config[name] for name in ("ranks", "interleave")}
    return [
        {**group, **(ranks if group["type"] == "full" else {})}
        for group in config["groups"]
    ]


def get_room(config: Mapping[str, Any], field: str) -> tuple[int, int, int]:
    """Returns the sizes of the memory for a config.

    Args:
        config: the config of the cache.
        field: the config field with the number of blocks.

    Returns:
        The number of blocks, the number of slots of a block, and the number of buffers.
    """
    groups = config["groups"]
    size = max(group["block"] for group in groups)
    return config[field], size, max(group["layers"] for group in groups)
