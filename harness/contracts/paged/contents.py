"""Keeps the contents of blocks; the harness acts as the model and copies transfers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lockstep.harness.contracts.paged.checks import Slot
from lockstep.harness.core.errors import Broken

Pairs = Sequence[tuple[int, int]]
"""The blocks to copy: (source block, target block)."""

Memory = dict[Slot, tuple[int, int]]
"""Slot → its content: the group number and a tag."""


class Transfer(NamedTuple):
    """A transfer of blocks from the device to host memory, or from host to device."""

    pairs: Pairs
    leaves: bool

    def list_blocks(self, on_host: bool) -> list[int]:
        """Lists the transfer's blocks in host memory or on the device."""
        return [pair[on_host == self.leaves] for pair in self.pairs]


class Contents:
    """The contents of all blocks.

    Attributes:
        device: the contents of device blocks: tokens that the model has written, and
            completed transfers.
        host: the contents of host blocks.
        transfers: the transfers in progress, by name.
    """

    def __init__(self) -> None:
        self.device: Memory = {}
        self.host: Memory = {}
        self.transfers: dict[str, Transfer] = {}

    def copy(self, pairs: Pairs) -> None:
        """Copies blocks within the device, in the given order."""
        for pair in pairs:
            copy_block(self.device, self.device, *pair)

    def begin(self, name: str, pairs: Pairs, leaves: bool) -> None:
        """Begins a transfer; its target blocks must not be read until it ends.

        Raises:
            Broken: another transfer in progress uses a target block.
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
        """Returns block → name of the transfer that uses it, on the host or device."""
        return {
            block: name
            for name, transfer in self.transfers.items()
            for block in transfer.list_blocks(on_host)
        }

    def count_copies(self, name: str) -> int:
        return len(self.transfers[name].pairs) if name in self.transfers else 0

    def end(self, name: str, arrived: int | None = None) -> None:
        """Ends a transfer: copies its first `arrived` blocks, or all for None.

        The copy takes the current contents of the source blocks and overwrites the
        target blocks. If the backend has reused a target block during the transfer, the
        content of that block becomes wrong.
        """
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
    """Replaces the content of one block by the content of another block."""
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
