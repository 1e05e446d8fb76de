"""A block manager that stores K and V of all layers in its blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged import Flight, Move, PagedRequest, Segment, list_path
from lockstep.impl.shared.paged_groups import Group, StateGroup, Table
from lockstep.impl.shared.paged_host import Pairs, TieredManager

Pair = tuple[Any, Any]

Seen = npt.NDArray[np.bool_] | None
"""bool [queries, columns], whether a query sees a column; None if each sees all."""


class HostSpans(NamedTuple):
    """The blocks and positions to which some requests attend in one group.

    Attributes:
        tables: int32 [requests, entries], the block of each table entry; 0 for an entry
            without a block.
        firsts, ends: int32 [requests]; each request attends to the positions [first,
            end).
        block: number of positions of a block.
    """

    tables: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    block: int


class BlockMemory(ABC):
    """K and V of all blocks in some layers.

    A slot holds one position of a block: slot = block * size + index. Groups share the
    memory: the first layer of every group is in the first buffer, the second layer of
    every group is in the second buffer, and so on.

    Args:
        blocks: number of blocks.
        size: slots of a block; a group with smaller blocks leaves some slots unused.
        layers: number of buffers.
    """

    def __init__(self, blocks: int, size: int, layers: int) -> None:
        self.blocks, self.size, self.layers = blocks, size, layers

    @abstractmethod
    def write(self, layer: int, slots: Sequence[int], keys: Any, values: Any) -> None:
        """Writes K and V [1, heads, slots, dim] to distinct slots."""

    @abstractmethod
    def read(self, layer: int, slots: Sequence[int]) -> Pair:
        """Returns copies of K and V at the slots, [1, heads, slots, dim]."""

    @abstractmethod
    def copy(self, source: int, target: int) -> None:
        """Copies one block in all layers."""

    def receive(self, source: BlockMemory, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks of another memory in all layers.

        Args:
            source: the other memory.
            pairs: (block of the other memory, block of this memory) for each copy.
        """
        self.put(
            [target for _, target in pairs], source.get([block for block, _ in pairs])
        )

    def get(self, blocks: Sequence[int]) -> list[Pair]:
        """Returns copies of K and V of all slots of some blocks, for each layer.

        The list is empty if `blocks` is empty.
        """
        slots = self.list_slots(blocks)
        return [self.read(layer, slots) for layer in range(self.layers if slots else 0)]

    def put(self, blocks: Sequence[int], pairs: Sequence[Pair]) -> None:
        """Writes a result of `get`, from any memory, to `blocks`."""
        slots = self.list_slots(blocks)
        for layer, pair in enumerate(pairs):
            self.write(layer, slots, *map(self.bring, pair))

    def bring(self, array: Any) -> Any:
        """Returns an array of another memory on the device of this memory."""
        return array

    def list_slots(self, blocks: Sequence[int]) -> list[int]:
        size = self.size
        return [block * size + index for block in blocks for index in range(size)]

    @abstractmethod
    def attend(self, queries: Any, pair: Pair, seen: Seen) -> Any:
        """Computes attention, [1, heads, queries, value_dim].

        Args:
            queries: [1, heads, queries, key_dim]; the number of heads may be a multiple
                of the number of heads of K.
            pair: K and V [1, heads, columns, dim].
            seen: see `Seen`.
        """

    @abstractmethod
    def prepare(self, spans: HostSpans) -> Any:
        """Returns the `spans` argument of `attend_each`, for all layers of a group."""

    @abstractmethod
    def attend_each(self, layer: int, queries: Any, spans: Any) -> Any:
        """Computes attention of one token of each request, [1, heads, requests, dim].

        Args:
            layer: the number of the buffer.
            queries: [1, heads, requests, key_dim]; the number of heads may be a multiple
                of the number of heads of K.
            spans: the result of `prepare`.
        """

    @abstractmethod
    def join(self, pieces: Sequence[Any]) -> Any:
        """Concatenates arrays along their token axis."""


class StoringManager(TieredManager):
    """A block manager that stores K and V.

    Between the last `schedule` and `run`, or before `finish`, each layer is updated once,
    unless the step leaves out its group. Layers are numbered consecutively through all
    groups, in order; then come the layers that read another.

    Args:
        memory: the memory of the device blocks.
        groups, options: see `BlockManager`; each group also has "layers".
        host_memory: the memory of the host blocks, if there are host blocks.
        reads: for each further layer, which has no K and V of its own, the number of the
            layer that it reads. It must be updated after that layer.

    Attributes:
        layers: for each layer, the numbers of its group and of its buffer. A layer that
            reads another has the numbers of that layer.
        writing: number of layers that write.
        spans: group → the result of `BlockMemory.prepare` for the step of `segments`.
    """

    def __init__(
        self,
        memory: BlockMemory,
        groups: Sequence[Mapping[str, Any]],
        *options: Any,
        host_memory: BlockMemory | None = None,
        reads: Sequence[int] = (),
    ) -> None:
        host = host_memory.blocks if host_memory else 0
        super().__init__(groups, *options, host=host)
        self.memory, self.host_memory = memory, host_memory
        self.spans: dict[int, Any] = {}
        self.layers = [
            (number, layer)
            for number, group in enumerate(groups)
            for layer in range(group["layers"])
        ]
        self.writing = len(self.layers)
        for owner in reads:
            self.layers.append(self.find_layer(owner))

    def find_layer(self, owner: int) -> tuple[int, int]:
        """Returns the numbers of the group and the buffer of a layer that the next layer
        may read."""
        layer, why = len(self.layers), ""
        if owner == layer:
            why = f"layer {layer} reads itself"
        elif not 0 <= owner < layer:
            why = f"layer {layer} reads layer {owner}, but 0 … {layer - 1} are before it"
        elif owner >= self.writing:
            why = f"layer {layer} reads layer {owner}, which only reads another layer"
        elif isinstance(self.groups[self.layers[owner][0]], StateGroup):
            why = f"layer {layer} reads layer {owner}, which has states"
        if why:
            raise MisuseError(why)
        return self.layers[owner]

    def copy(self, source: int, target: int) -> None:
        super().copy(source, target)
        if not self.launched:
            self.memory.copy(source, target)

    def move_drafts(self, request: PagedRequest, path: Sequence[int]) -> list[Move]:
        moves, size = super().move_drafts(request, path), self.memory.size
        sources = [block * size + index for block, index, _, _ in moves]
        targets = [block * size + index for _, _, block, index in moves]
        for layer in range(self.memory.layers if moves else 0):
            self.memory.write(layer, targets, *self.memory.read(layer, sources))
        return moves

    def schedule(self, request: str, count: int) -> int | None:
        self.spans.clear()
        return super().schedule(request, count)

    def let_go(self, request: PagedRequest) -> None:
        self.spans.clear()
        super().let_go(request)

    def begin_step(self, flight: Flight, lags: bool) -> None:
        self.pending = []
        self.spans.clear()
        super().begin_step(flight, lags)

    def finish(self, sampled: Sequence[int | None] = ()) -> None:
        self.spans.clear()
        copies = self.launched[0].copies
        super().finish(sampled)
        for pair in copies:
            self.memory.copy(*pair)

    @property
    def segments(self) -> Sequence[Segment]:
        """The step that executes next: the oldest launched step, or the planned step."""
        return self.launched[0].segments if self.launched else self.step

    # --- other memory -------------------------------------------------------------------

    def move(self, pairs: Pairs, leaves: bool) -> None:
        if self.host_memory is not None and leaves:
            self.host_memory.receive(self.memory, pairs)
        elif self.host_memory is not None:
            self.memory.receive(self.host_memory, pairs)

    def save(self) -> Any:
        """Returns the result of `TieredManager.save`, and K and V of the saved blocks."""
        saved = super().save()
        if saved is None:
            return None
        pools = zip(self.list_memories(), (self.blocks, self.host), strict=False)
        return saved, [memory.get(list(pool.cached)) for memory, pool in pools]

    def restore(self, saved: Any) -> None:
        base, contents = saved
        super().restore(base)
        pools = zip(
            self.list_memories(), (self.blocks, self.host), contents, strict=False
        )
        for memory, pool, content in pools:
            memory.put(list(pool.cached), content)

    def list_memories(self) -> list[BlockMemory]:
        return [
            memory for memory in (self.memory, self.host_memory) if memory is not None
        ]

    # --- K and V ------------------------------------------------------------------------

    def update(self, layer: int, keys: Any, values: Any) -> list[Pair]:
        """Writes K and V of the step in one layer; see `write`.

        Returns:
            K and V of all positions that a token of the step attends to; see
            `harness.backends.paged`.
        """
        self.write(layer, keys, values)
        return [self.read(layer, segment) for segment in self.segments]

    def write(self, layer: int, keys: Any, values: Any) -> None:
        """Writes K and V of the step in one layer.

        Ignores them if the layer reads another.
        """
        if layer >= self.writing:
            return
        number, buffer = self.layers[layer]
        written = [
            slot
            for segment in self.segments
            for slot in self.list_slots(
                segment.tables, number, segment.start, segment.end
            )
        ]
        self.memory.write(buffer, written, keys, values)

    def read(self, layer: int, segment: Segment) -> Pair:
        """Returns K and V of all positions that a token of the step attends to."""
        number, buffer = self.layers[layer]
        first = self.groups[number].first(segment.start)
        slots = self.list_slots(segment.tables, number, first, segment.end)
        return self.memory.read(buffer, slots)

    def attend(self, layer: int, queries: Any) -> Any:
        """Computes attention of all tokens of the step in one layer.

        K and V of the layer must have been written.

        Args:
            layer: the layer, as in `update`.
            queries: [1, heads, tokens, key_dim], in the order of `update`; the number of
                heads may be a multiple of the number of heads of K.

        Returns:
            [1, heads, tokens, value_dim].
        """
        number, buffer = self.layers[layer]
        if all(segment.end == segment.start + 1 for segment in self.segments):
            if number not in self.spans:
                self.spans[number] = self.memory.prepare(self.make_spans(number))
            return self.memory.attend_each(buffer, queries, self.spans[number])
        attended, at = [], 0
        for segment in self.segments:
            count = segment.end - segment.start
            rows = queries[:, :, at : at + count]
            seen = see(self.groups[number], segment) if count > 1 else None
            attended.append(self.memory.attend(rows, self.read(layer, segment), seen))
            at += count
        return self.memory.join(attended)

    def make_spans(self, number: int) -> HostSpans:
        """Returns the slots that each request of the step attends to in a group."""
        group = self.groups[number]
        tables = [segment.tables[number] for segment in self.segments]
        blocks = np.zeros((len(tables), max(map(len, tables))), np.int32)
        for row, table in zip(blocks, tables, strict=True):
            row[: len(table)] = [block or 0 for block in table]
        firsts = [group.first(segment.start) for segment in self.segments]
        ends = [segment.end for segment in self.segments]
        return HostSpans(
            blocks, np.array(firsts, np.int32), np.array(ends, np.int32), group.block
        )

    def list_slots(
        self, tables: Sequence[Table], group: int, begin: int, end: int
    ) -> list[int]:
        """Lists the slots of the positions [begin, end) in the tables of a request."""
        table, block, size = tables[group], self.groups[group].block, self.memory.size
        slots: list[int] = []
        for index in range(begin // block, -(-end // block)):
            number = table[index]
            assert number is not None
            first = index * block
            low, high = max(begin, first) - first, min(end, first + block) - first
            slots += range(number * size + low, number * size + high)
        return slots

    # --- states -------------------------------------------------------------------------

    def read_states(self, layer: int) -> list[Pair | None]:
        """Returns the states of each request before the step.

        The state of a request that has read no token is None.
        """
        number, buffer = self.layers[layer]
        return [
            self.memory.read(buffer, self.list_places(segment, number, [segment.start]))
            if segment.start
            else None
            for segment in self.segments
        ]

    def list_ends(self, layer: int) -> list[list[int]]:
        """Lists, for each request of the step, the numbers of tokens after which it
        writes states.

        A request writes states at the ends of blocks for which it has a slot, after its
        last token in the step, and after each draft.
        """
        number, _ = self.layers[layer]
        group = self.groups[number]
        assert isinstance(group, StateGroup)
        ends = []
        for segment in self.segments:
            last = min(segment.end, segment.length)
            written = group.list_written(segment.start, last, segment.length)
            stops = [min(last, (index + 1) * group.block) for index in written]
            ends.append([*stops, *range(last + 1, segment.end + 1)])
        return ends

    def write_states(self, layer: int, states: Any, further: Any) -> None:
        """Writes the states [1, heads, ends, dim] at all ends of `list_ends`."""
        number, buffer = self.layers[layer]
        ends = self.list_ends(layer)
        pairs = zip(self.segments, ends, strict=True)
        slots = [
            slot
            for segment, rows in pairs
            for slot in self.list_places(segment, number, rows)
        ]
        self.memory.write(buffer, slots, states, further)

    def list_places(
        self, segment: Segment, number: int, ends: Sequence[int]
    ) -> list[int]:
        """Lists the slots of the states of a group after these numbers of tokens."""
        table, group = segment.tables[number], self.groups[number]
        assert isinstance(group, StateGroup)
        blocks = [table[group.get_index(end, segment.length)] for end in ends]
        return [block * self.memory.size for block in blocks if block is not None]


def see(group: Group, segment: Segment) -> npt.NDArray[np.bool_]:
    """Returns bool [queries, columns]: whether a token of the step attends to a position.

    The columns are the positions that `StoringManager.read` returns.
    """
    positions = np.arange(group.first(segment.start), segment.end)
    queries = np.arange(segment.start, segment.end)
    firsts = np.array([group.first(query) for query in queries.tolist()])
    seen: npt.NDArray[np.bool_] = positions >= firsts[:, None]
    seen &= positions <= queries[:, None]
    drafts = range(1, len(segment.parents) + 1)
    for draft in drafts:
        path = [number in list_path(segment.parents, draft) for number in drafts]
        seen[draft - 1 - len(drafts), -len(drafts) :] &= path
    return seen
