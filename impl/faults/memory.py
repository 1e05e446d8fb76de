"""Mistakes with memory: wrong ownership, and memory that is freed too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.linear import Plan, Run
from lockstep.impl.shared.memory import Arrays
from lockstep.impl.shared.ring import Ring


@mistake("kv", 1)
def inputs_kept(cache: Any) -> None:
    """The arrays of an update are kept without a copy, until the cache overwrites them: a
    read of exactly their tokens returns these arrays."""
    memory = cache.memory
    carry_out, view, copy = memory.carry_out, memory.view, memory.copy
    clear, clone = memory.clear, cache.clone
    pending: list[tuple[Sequence[Run], Arrays]] = []

    def copy_pending() -> None:
        if pending:
            written, arrays = pending.pop()
            carry_out((memory.columns, None, written, written[:1]), arrays)

    def keep(plan: Plan, arrays: Arrays) -> Arrays:
        copy_pending()
        columns, copied, written, runs = plan
        carry_out((columns, copied, (), runs), arrays)
        pending.append((written, arrays))
        is_all = runs[0][2] - runs[0][1] == columns.room
        returned: Arrays = view(runs) if is_all else memory.view(runs)
        return returned

    def view_pending(runs: Sequence[Run]) -> Arrays:
        if pending and is_written(pending[0][0], runs):
            return pending[0][1]
        copy_pending()
        arrays: Arrays = view(runs)
        return arrays

    def copy_written(begin: int, end: int) -> Arrays:
        copy_pending()
        arrays: Arrays = copy(begin, end)
        return arrays

    def clear_all() -> None:
        pending.clear()
        clear()

    def clone_copied() -> Any:
        copy_pending()
        return clone()

    memory.carry_out, memory.view, memory.copy = keep, view_pending, copy_written
    memory.clear, cache.clone = clear_all, clone_copied


def is_written(written: Sequence[Run], runs: Sequence[Run]) -> bool:
    """Returns whether the columns are exactly the columns of the written tokens."""
    return [run[1:] for run in written] == [run[1:] for run in runs]


@mistake("rotating", 3)
def ring_never_wraps(cache: Any) -> None:
    """The ring has a slot for every position so far, and reuses none."""
    cache.memory.columns = EndlessRing(**asdict(cache.memory.columns))


class EndlessRing(Ring):
    def fits(self, first: int, begin: int, end: int) -> bool:
        return super().fits(first, begin, first + end)

    def plan(self, first: int, begin: int, end: int) -> Plan:
        if self.fits(first, begin, end):
            return super().plan(first, begin, end)
        copied = self.find(first, begin) if first < begin else ()
        grown = self.grow(first, end)
        return grown, copied, grown.find_targets(begin, end), grown.find(first, end)
