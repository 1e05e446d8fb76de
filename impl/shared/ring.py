"""Plans the columns of a sliding window: a ring, with a second copy of its columns if
updates wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.impl.shared.linear import Plan, Run


@dataclass(frozen=True)
class Ring:
    """Plans the columns of a window: position p is in column (p - base) mod capacity.

    An update of one token that completes a full window reads all `window` columns of the
    ring, in any order, and moves no other token. An update of several tokens needs the
    window in order of position. If such an update would wrap, the tokens are copied to
    new buffers with a *twin*: a second set of `capacity` columns after the first set.

    From then on, tokens are written to both sets, so that any `capacity` positions are
    consecutive columns. The copied tokens are not written to the twin, because no update
    reads them there: a run that begins at a copied token in column c ends before column c
    of the twin, and the twin columns before c have later tokens. An update of one token
    that returns to column 0 drops the twin.

    Attributes:
        window: number of tokens that are kept. The ring has no more columns than this
            unless an update needs more.
        step: a capacity of more than twice the old capacity is rounded up to a multiple
            of this number.
        twin: whether the ring may get a twin. If not, every update of several tokens that
            would wrap copies the window to new buffers.
        capacity: number of columns without the twin.
        room: number of columns, including the twin.
        base: position in column 0 before the ring first wraps.
    """

    window: int
    step: int
    twin: bool
    capacity: int = 0
    room: int = 0
    base: int = 0

    def plan(self, first: int, begin: int, end: int) -> Plan:
        """Plans an update that writes [begin, end) and returns [first, end).

        The returned columns are one run in order of position, or all columns of a full
        window in any order. Positions before `first` are not kept.
        """
        needed = end - first
        if needed == self.room == self.window == begin - first + 1:  # the usual step
            column = (begin - self.base) % needed
            return self, None, ((0, column, column + 1),), ((0, 0, needed),)
        ring, copied = self, None
        if not self.fits(first, begin, end):
            if first == begin and needed <= self.capacity:
                ring = replace(self, base=first)
            else:
                copied = self.find(first, begin) if first < begin else ()
                ring = self.grow(first, needed)
        if needed == ring.room:
            returned: Sequence[Run] = ((first, 0, needed),)
        else:
            returned = ring.find(first, end)
        return ring, copied, ring.find_targets(begin, end), returned

    def fits(self, first: int, begin: int, end: int) -> bool:
        """Returns whether an update (see `plan`) leaves all tokens in their columns."""
        needed = end - first
        is_step = needed == self.window == begin - first + 1
        if is_step and needed == self.room:
            return True
        if needed > self.capacity:
            return False
        column = (first - self.base) % self.capacity
        if is_step and column == 0 and self.room > self.capacity:
            return False
        return column + needed <= self.room

    def grow(self, first: int, needed: int) -> Ring:
        """Returns the planner of new buffers for `needed` positions from `first` on.

        The capacity at least doubles, but not beyond the window, because updates of one
        token need no more columns.
        """
        doubled = min(2 * self.capacity, self.window)
        capacity = max(doubled, -(-needed // self.step) * self.step)
        if needed <= self.window:
            capacity = min(capacity, self.window)
        has_twin = self.twin and first > 0 and needed > self.window
        room = 2 * capacity if has_twin else capacity
        return replace(self, capacity=capacity, room=room, base=first)

    def find(self, begin: int, end: int) -> Sequence[Run]:
        """Returns the columns of [begin, end), in order of position: one run or two."""
        column = (begin - self.base) % self.capacity
        stop = column + end - begin
        if stop <= self.room:
            return ((begin, column, stop),)
        rest_begin = begin + self.room - column
        return (begin, column, self.room), (rest_begin, 0, stop - self.room)

    def find_targets(self, begin: int, end: int) -> Sequence[Run]:
        """Returns the target columns of new tokens, which are numbered from 0.

        With a twin, most tokens have two target columns, and a run at the end of the ring
        continues into the twin.
        """
        column, count = (begin - self.base) % self.capacity, end - begin
        fits = min(count, self.capacity - column)
        runs: tuple[Run, ...]
        if self.room == self.capacity:
            runs = ((0, column, column + fits),)
        else:
            twin = column + self.capacity
            runs = (0, column, column + count), (0, twin, twin + fits)
        return (*runs, (fits, 0, count - fits)) if fits < count else runs

    def destroys(self, low: int, high: int, first: int, begin: int, end: int) -> bool:
        """Returns whether an update changes columns of the positions [low, high).

        This is the case if the update moves all tokens, or writes to such a column. For
        the other arguments, see `plan`.
        """
        if not self.fits(first, begin, end):
            return True
        ahead = (begin - low) % self.capacity
        return ahead < high - low or ahead + end - begin > self.capacity

    def count_with_spare(self, tokens: int) -> int:
        """Returns the number of positions for `tokens` tokens and one more token."""
        return min(tokens + 1, self.window)

    def take_block(
        self, position: int, column: int, tokens: int, room: int
    ) -> Ring | None:
        """Returns the planner for existing buffers that already hold the tokens; see
        `Linear.take_block`."""
        is_full = tokens == self.window == room
        if is_full or column + tokens < room <= 2 * tokens:
            base = position - column
            return replace(self, capacity=room, room=room, base=base)
        return None

    def clear(self) -> Ring:
        """Returns the planner for an empty cache without buffers."""
        return replace(self, capacity=0, room=0, base=0)
