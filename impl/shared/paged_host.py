"""A block manager that copies prefixes to blocks in host memory and back."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from lockstep.impl.shared.block_pool import BlockPool, list_held
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged import BlockManager, PagedRequest, find
from lockstep.impl.shared.paged_groups import Group, Table, make_group

Pairs = Sequence[tuple[int, int]]
"""The blocks to copy: (source, target)."""


@dataclass
class Transfer:
    """A transfer that has not ended.

    Attributes:
        request: the request for which the transfer began.
        keys: the keys of the request's prefixes when the transfer began.
        end: number of transferred tokens; 0 if requests may no longer reuse them.
        places: for each pair, the number of its group and its index in the table of the
            group.
        pairs: the blocks to copy, from the device to the host if `leaves`, otherwise from
            the host to the device.
        is_remote: whether another cache takes the place of the host; only the numbers of
            device blocks are then used.
    """

    request: PagedRequest
    keys: Sequence[bytes]
    end: int
    places: Sequence[tuple[int, int]]
    pairs: Pairs
    leaves: bool
    is_remote: bool = False

    @property
    def blocks(self) -> list[int]:
        """The blocks of the transfer that are on the device."""
        return [pair[not self.leaves] for pair in self.pairs]

    @property
    def host_blocks(self) -> list[int]:
        return [] if self.is_remote else [pair[self.leaves] for pair in self.pairs]


class BothPools(BlockPool):
    """The blocks that can be hit on the device or on the host.

    Block n of the host has the number ~n.
    """

    def __init__(self, device: BlockPool, host: BlockPool) -> None:
        super().__init__(0, 0)
        self.device, self.host = device, host
        pairs = zip(device.entries, host.entries, strict=True)
        self.entries = [ChainMap(*pair) for pair in pairs]  # type: ignore[arg-type]

    def find(self, group: int, key: bytes) -> int | None:
        block = self.device.find(group, key)
        if block is None:
            on_host = self.host.find(group, key)
            return None if on_host is None else ~on_host
        return block


class TieredManager(BlockManager):
    """A block manager that copies prefixes to a host and back.

    A transfer holds its blocks on the device and on the host until it ends. A request
    that releases these blocks earlier does not free them.

    Args:
        groups, options: see `BlockManager`.
        host: number of blocks of the host.

    Attributes:
        sizes: the groups, the number of blocks, the unit, and the number of host blocks.
        pinned: device block → number of transfers that hold it.
    """

    def __init__(
        self, groups: Sequence[Mapping[str, Any]], *options: Any, host: int = 0
    ) -> None:
        super().__init__(groups, *options)
        self.sizes = [dict(group) for group in groups], self.blocks.count, self.unit, host
        self.host = BlockPool(host, len(groups))
        both = BothPools(self.blocks, self.host)
        self.both, self.host_groups = (
            [make_group(*numbered, pool, self.unit) for numbered in enumerate(groups)]
            for pool in (both, self.host)
        )
        self.transfers: dict[str, Transfer] = {}
        self.pinned: Counter[int] = Counter()

    # --- beginning ----------------------------------------------------------------------

    def offload(self, name: str, transfer: str) -> Pairs:
        """Begins to copy blocks of a request to the host.

        Copies complete blocks that can be hit, that launched steps have no more to write,
        and that the host does not have. If the
        host has too few available blocks, copies as many blocks as fit, from the first
        block on.
        """
        request = self.get(name)
        if not request.computed:
            raise MisuseError(f"offload: request {name} has no computed tokens")
        self.check_transfer(transfer)
        settled = min(request.begun, len(request.tokens))
        keys = list(request.hash.extend(request.tokens))
        candidates = [
            ((index + 1) * group.block, group.number, index, block)
            for group in self.groups
            for index in range(settled // group.block)
            if (block := self.find_new(group, keys, (index + 1) * group.block))
            is not None
        ]
        candidates = sorted(candidates)[: self.host.count_available()]
        blocks = [block for *_, block in candidates]
        pairs = list(zip(blocks, self.host.take(len(blocks)), strict=True))
        places = [(group, index) for _, group, index, _ in candidates]
        begun = Transfer(request, keys, settled, places, pairs, True)
        self.hold_device(begun)
        self.transfers[transfer] = begun
        return pairs

    def find_new(self, group: Group, keys: Sequence[bytes], end: int) -> int | None:
        """Returns the block at the end of a prefix; None if the host has the prefix, or
        if a launched step has still to write to the block."""
        if self.host_groups[group.number].get(keys, end) is not None:
            return None
        block = group.get(keys, end)
        return None if any(block in item.written for item in self.launched) else block

    def load(self, name: str, transfer: str) -> tuple[int, Pairs] | None:
        """Assigns the blocks of the longest stored prefix to a waiting request.

        Begins to copy the blocks of the prefix that the host has and the device does not
        have.

        Returns:
            The length of the prefix, and the blocks to copy; None if the device has the
            whole prefix, or has too few available blocks.
        """
        request = self.get(name)
        if request.tables is not None:
            raise MisuseError(
                f"load: request {name} holds slots already; load before it is scheduled"
            )
        self.check_transfer(transfer)
        end = self.find_hit(self.both, request)
        keys = request.hash.keys
        tables = [group.claim(keys, end) for group in self.both]
        places = [
            (number, index)
            for number, table in enumerate(tables)
            for index, block in enumerate(table)
            if block is not None and block < 0
        ]
        blocks = [block for table in tables for block in list_held(table)]
        reused = [block for block in blocks if block >= 0]
        if not places or len(places) > self.blocks.count_available(reused):
            return None
        pairs = self.fetch(tables, places, reused)
        request.tables, request.passed = tables, [0] * len(tables)
        request.awaited, request.present, request.transfer = end, end, transfer
        begun = Transfer(request, keys, end, places, pairs, False)
        self.begin(transfer, begun)
        return end, pairs

    def begin(self, name: str, transfer: Transfer) -> None:
        self.hold_device(transfer)
        self.hold_host(transfer)
        self.transfers[name] = transfer

    def send(self, name: str, transfer: str) -> list[int]:
        """Begins to send the computed tokens of a request, as far as they have not been
        sent, to another cache. Returns their blocks."""
        request = self.get(name)
        if request.tables is None or not request.computed:
            raise MisuseError(f"send: request {name} has no computed tokens")
        self.check_transfer(transfer)
        end = min(request.computed, len(request.tokens))
        blocks = []
        for group, table in zip(self.groups, request.tables, strict=True):
            first = max(group.first(end), min(request.sent, end - 1))
            last = request.count_valid(group, end)
            indexes = range(first // group.block, -(-last // group.block))
            blocks += list_held([table[index] for index in indexes])
        request.sent = end
        pairs = [(block, block) for block in blocks]
        self.begin(transfer, Transfer(request, [], 0, [], pairs, True, True))
        return blocks

    def receive(self, name: str, transfer: str, end: int) -> tuple[int, list[int]] | None:
        """Assigns blocks to the first `end` tokens of a waiting request, of which another
        cache sends those that cannot be hit in whole blocks.

        Returns:
            The number of tokens that are hit, and the blocks that are sent; None if there
            are too few available blocks.
        """
        request = self.get(name)
        if request.tables is not None:
            raise MisuseError(f"receive: request {name} holds slots already")
        self.check_transfer(transfer)
        start, whole = self.match(name), lcm(*(group.block for group in self.groups))
        while start >= end or start % whole:
            most = min(start, end) - 1
            start = find(self.groups, request.hash.keys, most - most % whole)
        tables = [group.claim(request.hash.keys, start) for group in self.groups]
        places = sorted(
            ((index + 1) * group.block, group.number, index)
            for group in self.groups
            for index in range(
                max(group.first(end), start) // group.block, -(-end // group.block)
            )
        )
        reused = [block for table in tables for block in list_held(table)]
        if len(places) > self.blocks.count_available(reused):
            return None
        self.blocks.hold(reused)
        for _, number, index in places:
            self.extend(tables[number], [index], [])
        for group, table in zip(self.groups, tables, strict=True):
            table += [None] * (-(-end // group.block) - len(table))
        pairs = [(0, tables[number][index] or 0) for _, number, index in places]
        request.tables, request.passed = tables, [0] * len(tables)
        request.awaited, request.present, request.transfer = end, start, transfer
        at = [(number, index) for _, number, index in places]
        self.begin(transfer, Transfer(request, [], end, at, pairs, False, True))
        return start, [block for _, block in pairs]

    def fetch(
        self,
        tables: Sequence[Table],
        places: Sequence[tuple[int, int]],
        reused: list[int],
    ) -> Pairs:
        """Replaces the host blocks in the tables by blocks of the device."""
        self.blocks.hold(reused)
        sources = [~(tables[number][index] or 0) for number, index in places]
        targets = self.blocks.take(len(places))
        for (number, index), block in zip(places, targets, strict=True):
            tables[number][index] = block
        return list(zip(sources, targets, strict=True))

    def check_transfer(self, name: str) -> None:
        if name in self.transfers:
            raise MisuseError(f"there is a transfer {name} already")

    # --- ending -------------------------------------------------------------------------

    def landed(self, transfer: str) -> None:
        self.end(transfer, None)

    def failed(self, transfer: str, arrived: int) -> int:
        """Ends a failed transfer; keeps the copied blocks that are still useful."""
        return self.end(transfer, arrived)

    def end(self, name: str, arrived: int | None) -> int:
        """Ends a transfer.

        Args:
            name: the name of the transfer.
            arrived: the number of completed copies; None for all.

        Returns:
            The number of computed tokens of the request that waited for the transfer; 0
            if no request waited.
        """
        if name not in self.transfers:
            raise MisuseError(f"there is no transfer {name}")
        over = self.transfers.pop(name)
        request = over.request
        if not over.is_remote:
            self.move(over.pairs[:arrived], over.leaves)
        if over.leaves and arrived is not None:
            request.sent = 0
        if over.leaves:
            self.publish(over, over.pairs[:arrived])
        self.release_host(over)
        self.release_device(over)
        if request.transfer != name:
            return 0
        missing = [] if arrived is None else over.places[arrived:]
        hit = self.keep(request, over.end, missing)
        if not hit:
            self.let_go(request)
            return 0
        request.transfer, request.awaited, request.present = None, 0, 0
        request.set_computed(hit)
        self.settle(request)
        return hit

    def move(self, pairs: Pairs, leaves: bool) -> None:
        """Copies K and V of the blocks, if the manager stores K and V."""

    def publish(self, over: Transfer, pairs: Pairs) -> None:
        """Makes the blocks of the host available to `load`."""
        tables: list[Table] = [[None] * over.end for _ in self.groups]
        for (number, index), (_, block) in zip(over.places, pairs, strict=False):
            tables[number][index : index + 1] = [block]
        for group, table in zip(self.host_groups, tables, strict=True):
            group.publish(over.keys, table, 0, over.end)

    def keep(
        self, request: PagedRequest, end: int, missing: Sequence[tuple[int, int]]
    ) -> int:
        """Removes blocks that were not copied from the tables of a request.

        Also removes all blocks after the longest remaining hit.

        Returns:
            The number of tokens of this hit.
        """
        assert request.tables is not None
        for number, index in missing:
            self.blocks.release(list_held(request.tables[number][index : index + 1]))
            request.tables[number][index] = None
        pairs = list(zip(self.groups, request.tables, strict=True))
        hits = (
            hit
            for hit in range(end, 0, -self.unit)
            if all(group.can_go_back(table, hit, end) for group, table in pairs)
        )
        arrived = next(hits, 0)
        for group, table in pairs:
            group.cut(table, arrived)
        return arrived

    # --- holding ------------------------------------------------------------------------

    def hold_device(self, transfer: Transfer) -> None:
        self.blocks.hold(transfer.blocks)
        self.pinned.update(transfer.blocks)

    def release_device(self, transfer: Transfer) -> None:
        self.pinned.subtract(transfer.blocks)
        self.blocks.release(reversed(transfer.blocks))

    def hold_host(self, transfer: Transfer) -> None:
        self.host.hold(transfer.host_blocks)

    def release_host(self, transfer: Transfer) -> None:
        """Releases the host blocks of a transfer; unpublished blocks become free."""
        self.host.release(reversed(transfer.host_blocks))

    # --- saving -------------------------------------------------------------------------

    def save(self) -> Any:
        """Returns the contents of all blocks that can be hit.

        Returns None while a request holds slots, or a step or a transfer is running.
        """
        if not self.is_idle:
            return None
        return self.sizes, self.blocks.save(), self.host.save()

    def restore(self, saved: Any) -> None:
        """Loads the contents that another manager saved; this manager must be new.

        Raises:
            MisuseError: the other manager had other sizes. Nothing changes.
        """
        sizes, device, host = saved
        if sizes != self.sizes:
            raise MisuseError(
                f"restore: groups, blocks, unit and host blocks were {sizes}; here they"
                f" are {self.sizes}"
            )
        self.blocks.restore(device)
        self.host.restore(host)

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self.transfers

    # --- letting go ---------------------------------------------------------------------

    def withdraw(self, request: PagedRequest) -> None:
        super().withdraw(request)
        for under_way in self.transfers.values():
            if under_way.request is request:
                under_way.end = 0
        for group, entries in zip(self.groups, self.host.entries, strict=True):
            for key in self.list_settled(request, group):
                if key in entries:
                    self.host.forget(entries[key])

    def update_weights(self) -> None:
        super().update_weights()
        self.host.forget_all()
        for under_way in self.transfers.values():
            if under_way.leaves:
                under_way.end = 0

    def reset(self) -> bool:
        if not self.is_idle:
            return False
        self.host.evict(self.host.count)
        return super().reset()
