"""A pool of blocks with reference counts, and the prefixes that can be hit in
the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence

Note = Callable[[str, int, bytes, int], None]
"""Is called with "stored" or "removed", the group, the key and the block."""


Saved = tuple[int, int, Sequence[bytes], int]
"""A cached block, its group, its keys, and the number of positions that they cover."""


class BlockPool:
    """Blocks that are held by tables, free, or cached. Cached blocks can be hit.

    A key is the digest of a whole prefix; see `impl.shared.prefix_hash`. A block has one
    key for each published prefix that ends in the block; all keys of a block belong to
    the same group.

    Args:
        count: number of blocks.
        groups: number of groups; each group has separate keys.

    Attributes:
        references: for each block, the number of tables that hold it.
        free: the free blocks; the last block of the list is taken first.
        cached: the cached blocks in the order of their release; the first block is
            evicted first.
        entries: for each group, key → block.
        keys: for each block, its keys.
        filled: for each block, the number of its positions that its keys cover.
    """

    def __init__(self, count: int, groups: int) -> None:
        self.count = count
        self.references = [0] * count
        self.free = list(range(count - 1, -1, -1))
        self.cached: dict[int, None] = {}
        self.entries: list[MutableMapping[bytes, int]] = [{} for _ in range(groups)]
        self.keys: list[list[bytes]] = [[] for _ in range(count)]
        self.filled = [0] * count
        self.group_of = [0] * count
        self.note: Note | None = None

    def count_available(self, reused: Iterable[int] = ()) -> int:
        """Counts the blocks that can be taken while the `reused` blocks are kept."""
        idle = sum(not self.references[block] for block in set(reused))
        return len(self.free) + len(self.cached) - idle

    # --- taking and letting go ----------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Takes free blocks first, then the blocks that have been cached for the longest
        time."""
        if count > len(self.free):
            self.evict(count - len(self.free))
        first = len(self.free) - count
        taken = self.free[first:]
        del self.free[first:]
        taken.reverse()
        for block in taken:
            self.references[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Records that one more table holds these blocks."""
        references, cached = self.references, self.cached
        for block in blocks:
            if not references[block]:
                del cached[block]
            references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Records that one table fewer holds these blocks. If the blocks become cached,
        the first block of the list is evicted first."""
        references, keys = self.references, self.keys
        free, cached = self.free, self.cached
        for block in blocks:
            references[block] -= 1
            if references[block]:
                continue
            if keys[block]:
                cached[block] = None
            else:
                free.append(block)

    def evict(self, count: int) -> int:
        """Frees up to `count` cached blocks; returns the number of freed blocks."""
        victims = [block for block, _ in zip(self.cached, range(count), strict=False)]
        for block in victims:
            self.forget(block)
        return len(victims)

    def save(self) -> list[Saved]:
        """Returns the cached blocks for `restore`, the oldest block first."""
        return [
            (block, self.group_of[block], tuple(self.keys[block]), self.filled[block])
            for block in self.cached
        ]

    def restore(self, saved: Sequence[Saved]) -> None:
        """Caches the saved blocks. All blocks must be free before the call."""
        for block, group, keys, filled in saved:
            self.free.remove(block)
            self.cached[block] = None
            for key in keys:
                self.publish(group, key, block, filled)

    # --- keys ---------------------------------------------------------------------------

    def publish(self, group: int, key: bytes, block: int, filled: int) -> None:
        """Publishes a block for a prefix, unless another block is already published for
        it.

        Args:
            group: the group of the block.
            key: the key of the prefix.
            block: the block with the last tokens of the prefix.
            filled: number of these tokens in the block.
        """
        if self.entries[group].setdefault(key, block) != block or key in self.keys[block]:
            return
        self.keys[block].append(key)
        self.group_of[block] = group
        self.filled[block] = max(self.filled[block], filled)
        if self.note is not None:
            self.note("stored", group, key, block)

    def forget(self, block: int) -> None:
        """Removes all keys of a block, which is then free if no table holds it."""
        group = self.group_of[block]
        for key in self.keys[block]:
            del self.entries[group][key]
            if self.note is not None:
                self.note("removed", group, key, block)
        self.keys[block] = []
        self.filled[block] = 0
        if block in self.cached:
            del self.cached[block]
            self.free.append(block)

    def forget_all(self) -> None:
        """Removes all keys of all blocks."""
        for block in range(self.count):
            self.forget(block)

    def find(self, group: int, key: bytes) -> int | None:
        return self.entries[group].get(key)


def list_held(table: Sequence[int | None]) -> list[int]:
    """Lists the blocks of a table, without the entries that are None."""
    return [block for block in table if block is not None]
