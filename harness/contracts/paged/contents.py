"""The contents of blocks, where the harness plays the model and its transfers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lockstep.harness.contracts.paged.checks import Slot
from lockstep.harness.core.errors import Broken

Pairs = Sequence[tuple[int, int]]
"""Blocks to copy: from, to."""

Memory = dict[Slot, tuple[int, int]]
"""What each slot holds: the number of its group, and a tag."""


class Transfer(NamedTuple):
    """Blocks to copy: from the device to other memory, or back."""

    pairs: Pairs
    leaves: bool

    def list_blocks(self, on_host: bool) -> list[int]:
        """Lists its blocks on one side."""
        return [pair[on_host == self.leaves] for pair in self.pairs]


class Contents:
    """What all blocks hold.

    Attributes:
        device: what the model has written where the tables said, and what has landed.
        host: of other memory.
        transfers: those that are under way, by name.
    """

    def __init__(self) -> None:
        self.device: Memory = {}
        self.host: Memory = {}
        self.transfers: dict[str, Transfer] = {}

    def copy(self, pairs: Pairs) -> None:
        """Copies blocks of the device, in this order."""
        for pair in pairs:
            copy_block(self.device, self.device, *pair)

    def begin(self, name: str, pairs: Pairs, leaves: bool) -> None:
        """Begins a transfer: nobody may read what it writes until it is over.

        Raises:
            Broken: another one that is under way needs what it writes.
        """
        begun = Transfer(pairs, leaves)
        written = {target for _, target in pairs}
        for copied, transfer in self.transfers.items():
            needed = transfer.list_blocks(on_host=leaves)
            for block in sorted(written.intersection(needed)):
                memory_name = "of other memory" if leaves else "of the device"
                raise Broken(
                    "transfer",
                    f"transfer {name} writes block {block} {memory_name}, which transfer"
                    f" {copied} still needs",
                )
        self.transfers[name] = begun
        clear(self.host if leaves else self.device, written)

    def list_busy(self, on_host: bool) -> dict[int, str]:
        """Maps the blocks of one side that transfers need to the names of these."""
        return {
            block: name
            for name, transfer in self.transfers.items()
            for block in transfer.list_blocks(on_host)
        }

    def count_copies(self, name: str) -> int:
        return len(self.transfers[name].pairs) if name in self.transfers else 0

    def end(self, name: str, arrived: int | None = None) -> None:
        """Copies the first blocks of a transfer, or all, as they are now, over what is in
        their targets now: a block that another has got meanwhile has a wrong content."""
        pairs, leaves = self.transfers.pop(name)
        source, target = self.host, self.device
        if leaves:
            source, target = target, source
        for pair in pairs[:arrived]:
            copy_block(source, target, *pair)

    def clone(self) -> Contents:
        """Returns the same contents, without transfers."""
        copied = Contents()
        copied.device, copied.host = dict(self.device), dict(self.host)
        return copied


def copy_block(source: Memory, target: Memory, block: int, copied: int) -> None:
    """Copies all of a block, over all of another."""
    moved = {
        (copied, at): content
        for (transfer, at), content in source.items()
        if transfer == block
    }
    clear(target, {copied})
    target.update(moved)


def clear(memory: Memory, blocks: Collection[int]) -> None:
    for slot in [slot for slot in memory if slot[0] in blocks]:
        del memory[slot]
