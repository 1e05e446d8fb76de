"""Keeps the contents of blocks; the harness acts as the model and copies transfers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from lockstep.harness.backends.paged import Ring, Table, Tables
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.paged.model import PagedModel
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Request, Weights, list_places

Slot = tuple[int, int]
"""(block, index in the block). A state takes the whole block, with index 0. The indexes
of rank r begin at r · `RANK`."""

RANK = 16
"""The number of indexes of a rank: the maximum number of positions of a block."""

Pairs = Sequence[tuple[int, int]]
"""The blocks to copy: (source block, target block)."""

Held = tuple[int, int, Weights]
"""The content of a slot: the number of its group, a tag, and the weights on which it
depends."""

Memory = dict[Slot, Held]


class Need(NamedTuple):
    """The content that a slot must hold.

    Attributes:
        group: the number of the group.
        position: the position; for a state, the position of the last token that the
            state has read.
        tag: the tag of the content.
        weights: the weights on which it depends.
    """

    group: int
    position: int
    tag: int
    weights: Weights

    @property
    def held(self) -> Held:
        return self.group, self.tag, self.weights


def locate(
    config: Config, table: Table, group: int, position: int, length: int
) -> list[Slot]:
    """Lists the slots of a position in a group's table, one for each rank that stores the
    position; none if missing or unknown. A state has one slot for all ranks.

    Args:
        config: the config of the program.
        table: the table of a request.
        group: the number of the group.
        position: the position; for a state, the last position that it has read.
        length: number of tokens of the request; positions behind them are drafts. The
            states after the drafts follow the state after the last token in the table.
    """
    settings = config["groups"][group]
    number, index = divmod(position, settings["block"])
    ranks, interleave = config["ranks"], config["interleave"]
    if settings["type"] == "state":
        last = min(position, length - 1)
        number, index, ranks = last // settings["block"] + position - last, 0, 1
    if isinstance(table, Ring) or number >= len(table):
        return []
    block = table[number]
    if block is None:
        return []
    if ranks == 1:
        return [(block, index)]
    places = list_places(settings["type"], index, ranks, interleave)
    return [(block, rank * RANK + index) for rank, index in places]


def name_rank(config: Config, slot: Slot) -> str:
    """Formats the rank of a slot for reports: " on rank 1"; "" without ranks."""
    return f" on rank {slot[1] // RANK}" if config["ranks"] > 1 else ""


def list_needs(model: PagedModel, request: Request, end: int) -> Iterator[Need]:
    """Yields the contents that the slots of a request must hold once the launched steps
    have finished: from the oldest position that the next token needs, up to `end`.

    Args:
        model: the reference.
        request: the request.
        end: the position after the last content.
    """
    for number, group in enumerate(model.cache.groups):
        valid = request.count_valid(group, end)
        positions: Sequence[int] = range(group.first(request.begun), valid)
        if group.type == "state":
            block = model.config["groups"][number]["block"]
            length = len(request.tokens)
            positions = list_state_positions(request.begun, end, block, length)
        for position in positions:
            tag, weights = model.get_tag(request, position), request.get_weights(position)
            yield Need(number, position, tag, weights)


def list_slots(
    model: PagedModel, name: str, tables: Tables, end: int
) -> Iterator[tuple[Slot | None, Need]]:
    """Yields (slot, content) for each content that a request needs up to `end`, for each
    rank that stores it.

    The contents of rings are skipped.
    """
    request = model.cache.requests[name]
    for need in list_needs(model, request, end):
        table, place = tables[need.group], (need.group, need.position)
        if not isinstance(table, Ring):
            slots = locate(model.config, table, *place, len(request.tokens))
            for slot in slots or (None,):
                yield slot, need


def list_handed_over(
    model: PagedModel, name: str, tables: Tables, end: int, is_whole: bool = False
) -> Iterator[tuple[Slot | None, Need]]:
    """Yields (slot, content) for each content of the first `end` tokens of a request that
    another cache needs to continue the request, for each rank that stores it. If
    `is_whole`, also yields the contents before a window or chunk."""
    request = model.cache.requests[name]
    for number, group in enumerate(model.cache.groups):
        is_state = group.type == "state"
        first = end - 1 if is_state else 0 if is_whole else group.first(end)
        for position in range(first, request.count_valid(group, end)):
            tag, weights = model.get_tag(request, position), request.get_weights(position)
            need = Need(number, position, tag, weights)
            place = tables[number], number, position, len(request.tokens)
            for slot in locate(model.config, *place) or (None,):
                yield slot, need


def list_state_positions(start: int, end: int, block: int, length: int) -> list[int]:
    """Lists the position of the last token of each state that may exist.

    States exist at `end` and after each draft, and, if there are drafts, after the last
    token before them. Another state may exist after the last token of each block that
    ends between `start` and these states.

    Args:
        start: the number of computed tokens.
        end: the end of the step; without a step, the number of computed tokens.
        block: the block size.
        length: the number of tokens without drafts.
    """
    last = min(end, length)
    inside = range(start // block * block + block, last, block)
    return [stop - 1 for stop in (*inside, *range(last, end + 1))] if end else []


class Transfer(NamedTuple):
    """A transfer of blocks from the device to other memory, or from there to the device.

    Attributes:
        remote: the memory of another cache; None for host memory.
    """

    pairs: Pairs
    leaves: bool
    remote: Memory | None = None

    def list_blocks(self, on_host: bool) -> list[int]:
        """Lists the transfer's blocks in host memory or on the device."""
        if on_host and self.remote is not None:
            return []
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
        copy_blocks(self.device, self.device, pairs)

    def move(self, source: Slot, target: Slot) -> None:
        """Copies the content of a slot of the device to another slot."""
        self.device.pop(target, None)
        if source in self.device:
            self.device[target] = self.device[source]

    def begin(
        self, name: str, pairs: Pairs, leaves: bool, remote: Memory | None = None
    ) -> None:
        """Begins a transfer; its target blocks must not be read until it ends.

        Raises:
            Broken: another transfer in progress uses a target block.
        """
        transfer = Transfer(pairs, leaves, remote)
        written = {*transfer.list_blocks(on_host=leaves)}
        busy = self.list_busy(on_host=leaves)
        for block in sorted(written & busy.keys()):
            memory_name = "of other memory" if leaves else "of the device"
            raise Broken(
                "transfer",
                f"transfer {name} writes block {block} {memory_name}, which transfer"
                f" {busy[block]} still needs",
            )
        self.transfers[name] = transfer
        clear(self.host if leaves else self.device, written)

    def list_busy(self, on_host: bool) -> dict[int, str]:
        """Returns block → name of the transfer that uses it, on the host or device."""
        return {
            block: name
            for name, transfer in self.transfers.items()
            for block in transfer.list_blocks(on_host)
        }

    def end(self, name: str, arrived: int | None = None) -> None:
        """Ends a transfer: copies its first `arrived` blocks, or all for None.

        The copy takes the current contents of the source blocks and overwrites the
        target blocks. If the backend has reused a target block during the transfer, the
        content of that block becomes wrong.
        """
        pairs, leaves, remote = self.transfers.pop(name)
        other = self.host if remote is None else remote
        memories = (self.device, other) if leaves else (other, self.device)
        copy_blocks(*memories, pairs[:arrived])

    def clone(self) -> Contents:
        """Returns the same contents, without transfers."""
        copied = Contents()
        copied.device, copied.host = dict(self.device), dict(self.host)
        return copied


def copy_blocks(source: Memory, target: Memory, pairs: Pairs) -> None:
    """Replaces the content of blocks by the content of other blocks, in this order."""
    for copied, written in pairs:
        content = [(at, held) for (block, at), held in source.items() if block == copied]
        clear(target, {written})
        target.update({(written, at): held for at, held in content})


def clear(memory: Memory, blocks: Collection[int]) -> None:
    for slot in [slot for slot in memory if slot[0] in blocks]:
        del memory[slot]
