"""The causal caches without their arrays: passes, windows and refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from lockstep.impl.shared.axes import UNIT, pack
from lockstep.impl.shared.batch import (
    Ints,
    PassRows,
    check_copy,
    check_position,
    check_range,
)
from lockstep.impl.shared.cells import FEW, Cells
from lockstep.impl.shared.errors import MisuseError, NotSupportedError, SharedError
from lockstep.impl.shared.mask_line import Sight
from lockstep.impl.shared.slots import SavedSlot

Form = tuple[int, int, int]
"""heads, key_dim, value_dim"""

FAR = 1 << 62
"""A position after all other positions."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a cache of the causal family.

    Attributes:
        sequences: number of sequences, numbered from 0.
        capacity: number of tokens for each sequence.
        batch: maximum number of rows of a pass.
        window: number of tokens before itself that a query sees; None or 0 for no limit.
        memory: the largest distance, in positions, between a kept token and the next
            token of its sequence; None or 0 for no limit.
        chunk: size of the chunks of positions; a query sees only its own chunk. None or 0
            for no chunks.
        cache_padding: the number of columns of a mask is a multiple of this number.
        mask_padding: the number of rows of a mask is a multiple of this number.
        small: the largest number of values for which the simpler code is used; None for
            measured limits. It changes no content.
        sections: for positions of three axes, the numbers of pairs of a key that turn by
            t, y, x, t, … in turn. None for positions of one axis.
    """

    sequences: int
    capacity: int
    batch: int
    window: int | None = None
    memory: int | None = None
    chunk: int | None = None
    cache_padding: int = 1
    mask_padding: int = 1
    small: int | None = None
    sections: Sequence[int] | None = None

    def get_small(self, usual: int) -> int:
        """Returns the limit for the simpler code: `small`, or `usual` if `small`
        is None."""
        return usual if self.small is None else self.small

    def get_memory(self) -> int | None:
        """Returns how many positions before the next token are kept; None for no limit.

        Raises:
            MisuseError: the number is less than the window.
        """
        window, memory = self.window or inf, self.memory or inf
        if memory < inf and self.sequences > 1:
            memory = max(memory, window + 1)  # room for a stop token
        if memory >= self.capacity:
            return None
        if memory < window:
            raise MisuseError(
                "memory must be at least as large as the window"
                f" ({self.window or 'all tokens'}), but is {self.memory}"
            )
        return int(memory)

    def count_cells(self) -> int:
        memory = self.get_memory()
        cells = self.sequences * self.capacity
        if memory is not None:
            cells = self.sequences * memory + self.batch
        return round_up(cells, self.cache_padding)


def round_up(number: int, padding: int) -> int:
    return -(-number // padding) * padding


class Pass(NamedTuple):
    """An open pass.

    Attributes:
        batch: its rows.
        cells: the cell of each row; None if the pass only reserves memory.
        begin, end: the columns of the mask are the cells [begin, end).
        sight: the tokens that the rows see; None if the pass only reserves memory. It
            never becomes outdated, because every operation that changes a cell first ends
            the pass.
    """

    batch: PassRows
    cells: Ints | None
    begin: int
    end: int
    sight: Sight | None = None


@dataclass(frozen=True)
class Saved:
    """The whole content of a cache.

    Attributes:
        table: metadata of the used cells; see `Cells.table`.
        arrays: keys and values of these cells; None before the first put.
        form: heads and dimensions of the arrays; None before the first put.
        written: for each layer, whether it was put.
        limits: the sizes that must be the same in a cache that loads the content.
        states: the states of a recurrent cache; see `impl.shared.slots`.
    """

    table: Ints
    arrays: Any
    form: Form | None
    written: Sequence[bool]
    limits: Mapping[str, Any]
    states: Sequence[SavedSlot] = ()


class CausalCacheBase(ABC):
    """Keys and values of many sequences in one pool of cells.

    Args:
        sizes: see `Sizes`.
        layers: number of layers; all have the same heads and dimensions.
        can_shift: whether keys can be rotated to another position.
    """

    def __init__(self, sizes: Sizes, layers: int, can_shift: bool) -> None:
        self.sizes, self.layers, self.can_shift = sizes, layers, can_shift
        self.form: Form | None = None
        self.written = [False] * layers
        self.window, self.chunk = sizes.window or None, sizes.chunk or None
        self.memory = sizes.get_memory()
        few = sizes.get_small(FEW)
        unit = UNIT if sizes.sections else 1
        self.cells = Cells(sizes.count_cells(), sizes.sequences, few, unit)
        self.current: Pass | None = None
        self.mask: Any = None

    # --- a pass -------------------------------------------------------------------------

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int] = (),
        multimodal: Sequence[int] = (),
        reserve: bool = False,
        coordinates: Sequence[Sequence[int]] = (),
    ) -> None:
        """Opens a pass with one token per row. Then call `put` and `get` for each layer.

        Args:
            positions, sequences, exceptions, multimodal: see `PassRows`.
            reserve: True to reserve memory for the largest pass and store nothing.
            coordinates: (y, x) of each row, whose position is t. Empty if all rows are
                text: then y = x = t.

        Raises:
            CacheFullError: there are not enough free cells. No pass is open.
        """
        batch = self.make_batch(positions, sequences, exceptions, multimodal, coordinates)
        self.close()
        if reserve:
            self.check_rows(batch)
            self.reserve(batch)
            return
        self.evict(batch)
        self.refuse(batch)
        self.add(batch)

    def make_batch(self, *rows: Sequence[Any]) -> PassRows:
        positions, sequences, exceptions, multimodal, coordinates = rows
        count, most = self.sizes.sequences, self.sizes.batch
        batch = PassRows(positions, sequences, exceptions, multimodal, count, most)
        if self.sizes.sections:
            batch.places = pack(batch.positions, coordinates)
        elif len(coordinates):
            raise MisuseError("coordinates need a cache that was opened with sections")
        return batch

    def close(self) -> None:
        """Ends the pass."""
        self.current = self.mask = None

    def check_rows(self, batch: PassRows) -> None:  # noqa: B027
        """Does nothing: every combination of rows is allowed."""

    def reserve(self, batch: PassRows) -> None:
        """Opens a pass that covers all cells and stores nothing."""
        self.current = Pass(batch, None, 0, self.cells.count)

    def evict(self, batch: PassRows) -> None:
        if self.memory is not None:
            self.cells.evict(batch, self.memory)

    def refuse(self, batch: PassRows) -> None:
        self.cells.check(len(batch))

    def add(self, batch: PassRows) -> None:
        cells = self.cells.add(batch)
        limits = self.compute_limits(batch)
        sight = Sight.find(batch, limits, self.cells.indexes)
        self.current = Pass(batch, cells, *self.compute_columns(sight), sight)

    def compute_columns(self, sight: Sight) -> tuple[int, int]:
        """Returns a range of cells that contains every cell that some row sees."""
        first, last = sight.get_cells()
        padding = self.sizes.cache_padding
        return first // padding * padding, round_up(last + 1, padding)

    def get_low(self, positions: Ints) -> Ints | int:
        """Returns, for a query at each position, the first position that it may see."""
        low: Ints | int = 0
        if self.window is not None:
            low = np.maximum(low, positions - self.window)
        if self.chunk is not None:
            low = np.maximum(low, positions - positions % self.chunk)
        return low

    def compute_limits(self, batch: PassRows) -> Ints:
        """Returns [2, rows]: for each row, the range [first, end) of visible positions,
        in units of the table of cells."""
        limits = np.empty((2, len(batch)), np.int64)
        limits[0] = np.multiply(self.get_low(batch.positions), self.cells.unit)
        np.add(batch.places, 1, out=limits[1])
        if len(batch.free):
            limits[1, batch.free] = FAR
        return limits

    def get_pass(self) -> Pass:
        if self.current is None:
            raise MisuseError("no pass is open; forward opens one")
        return self.current

    def check_put(self, layer: int, keys: Sequence[int], values: Sequence[int]) -> Pass:
        """Checks K and V before they are put into a layer.

        The first put fixes heads and dimensions.

        Args:
            layer: number of the layer.
            keys, values: shapes of K and V.

        Returns:
            The open pass.

        Raises:
            MisuseError: no pass is open, or the layer or a shape is wrong.
        """
        current = self.get_pass()
        if not 0 <= layer < self.layers:
            raise MisuseError(
                f"there is no layer {layer}; the layers are 0 … {self.layers - 1}"
            )
        self.check_tokens(len(current.batch), keys, values)
        self.written[layer] = True
        return current

    def check_tokens(self, rows: int, keys: Sequence[int], values: Sequence[int]) -> None:
        """Raises MisuseError if K or V does not fit a pass of `rows` rows."""
        if self.form is not None:
            heads, key_dim, value_dim = self.form
            wanted = (1, heads, rows, key_dim), (1, heads, rows, value_dim)
            if (keys, values) == wanted:
                return
        for shape, name in ((keys, "K"), (values, "V")):
            if len(shape) != 4 or shape[0] != 1 or shape[2] != rows:
                raise MisuseError(
                    f"{name} has shape {list(shape)}, but must have [1, heads, {rows},"
                    f" dim], because the pass has {rows} rows"
                )
        if keys[1] != values[1]:
            raise MisuseError(f"K has {keys[1]} heads, V has {values[1]}")
        self.fix_form((keys[1], keys[3], values[3]))

    def fix_form(self, form: Form) -> None:
        """Allocates memory with these heads and dimensions; raises MisuseError if the
        memory has others."""
        if self.form is None:
            sections, pairs = self.sizes.sections, form[1] // 2
            if sections and sum(sections) != pairs:
                raise MisuseError(f"sections {sections} must add up to {pairs} pairs")
            self.allocate(*form)
            self.form = form
        self.check_form(form)

    def check_form(self, form: Form | None) -> None:
        if self.form != form:
            raise MisuseError(
                f"heads, key_dim and value_dim are {form}, but must be {self.form}, as"
                " in the first put"
            )

    def check_get(self, layer: int) -> Pass:
        """Returns the open pass; raises MisuseError if nothing was put into the layer."""
        current = self.get_pass()
        if not 0 <= layer < self.layers or not self.written[layer]:
            raise MisuseError(f"layer {layer} has no content; put K and V into it first")
        return current

    # --- between passes -----------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Replaces the tokens of `target` by the tokens of `source` at positions before
        `length`."""
        check_copy(source, target, length, self.sizes.sequences)
        self.close()
        self.cells.copy_prefix(source, target, length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes [begin, end) and closes the gap; the keys that move are rotated.

        Args:
            sequence: the sequence that loses the tokens.
            begin: first position of the gap.
            end: position after the gap; None to remove all tokens from `begin` on.

        Raises:
            SharedError, NotSupportedError: the tokens after the gap cannot move. Then
                nothing changes.
        """
        check_range(sequence, begin, end, self.sizes.sequences)
        if end is None:
            self.close()
            self.cells.drop(sequence, begin, None)
            return
        following = self.cells.list_behind(sequence, end)
        if len(following) and self.cells.is_shared(sequence, following):
            raise SharedError(
                f"remove: the tokens from position {end} on would move, but sequence"
                f" {sequence} shares them with another sequence"
            )
        if len(following) and not self.can_shift:
            raise NotSupportedError(
                "remove: the tokens after a gap would move, but this cache cannot"
                " rotate their keys to another position"
            )
        self.close()
        moved = self.cells.close_gap(sequence, begin, end)
        if len(moved) and begin < end:
            self.turn(moved, begin - end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether all tokens that a pass from `position` on sees are stored."""
        check_position(sequence, position, self.sizes.sequences)
        if self.memory is None:
            return True
        index = self.cells.indexes[sequence]
        if not len(index):
            return False
        begin = max(0, position - self.window) if self.window is not None else 0
        first = index.first // self.cells.unit
        return begin >= first and position <= self.cells.get_end(sequence)

    def save(self) -> Saved:
        """Returns a copy of the whole content."""
        used = self.cells.list_used()
        arrays = None if self.form is None else self.copy_cells(used)
        table = self.cells.table[:, used]
        return Saved(table, arrays, self.form, tuple(self.written), self.get_limits())

    def get_limits(self) -> Mapping[str, Any]:
        """Returns the properties that a cache must share with the saved content that it
        loads."""
        return {
            "layers": self.layers,
            "sequences": self.sizes.sequences,
            "window": self.window,
            "memory": self.memory,
            "chunk": self.chunk,
            "shift": self.can_shift,
            "sections": self.sizes.sections,
        }

    def check_load(self, saved: Saved) -> None:
        """Raises MisuseError if the saved cache had other sizes than this cache."""
        for name, mine in self.get_limits().items():
            its = saved.limits.get(name)
            if its != mine:
                raise MisuseError(f"load: {name} was {its}, but is {mine} here")
        if saved.table.shape[1] > self.cells.count:
            raise MisuseError(
                f"load: {saved.table.shape[1]} cells were saved, but this cache has"
                f" only {self.cells.count}; open it with the sizes of the saved cache"
            )
        if None not in (saved.form, self.form):
            self.check_form(saved.form)

    def load(self, saved: Saved) -> None:
        """Replaces the content by the result of `save` of a cache with the same sizes.

        Raises:
            MisuseError: the other cache had other sizes. Nothing changes.
        """
        self.check_load(saved)
        if saved.form is not None:
            self.fix_form(saved.form)
        self.close()
        self.cells.load(saved.table)
        if saved.arrays is not None:
            self.paste_cells(saved.arrays)
        pairs = zip(self.written, saved.written, strict=True)
        self.written = [is_written or was_written for is_written, was_written in pairs]

    def held(self) -> dict[str, int]:
        """Counts the bytes of the arrays, and the cells in use."""
        size = sum(array.nbytes for array in self.list_arrays())
        return {"bytes": size, "blocks": self.cells.count - self.cells.free}

    @abstractmethod
    def list_arrays(self) -> list[Any]:
        """Lists the arrays that hold the content, of all layers."""

    @abstractmethod
    def allocate(self, heads: int, key_dim: int, value_dim: int) -> None:
        """Allocates the memory of all layers."""

    @abstractmethod
    def turn(self, cells: Ints, distance: int) -> None:
        """Rotates the keys of some cells, in all layers, by `distance` positions."""

    @abstractmethod
    def copy_cells(self, cells: Ints) -> Any:
        """Returns a copy of the keys and values of some cells, in all layers."""

    @abstractmethod
    def paste_cells(self, arrays: Any) -> None:
        """Writes a result of `copy_cells` to the first cells."""
