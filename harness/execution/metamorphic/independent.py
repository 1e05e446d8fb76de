"""Relations between operations that do not concern each other: either may be left out,
and they may come in either order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation

Things = set[Any]
"""What operations read and write: caches, snapshots, sequences, …"""


class Reach(ABC):
    """Which things the operations of one program depend on, and which they change."""

    @classmethod
    @abstractmethod
    def of(cls, history: History) -> Reach:
        """The reach of the operations of this program."""

    @abstractmethod
    def get_needs(self, step: Step) -> Things:
        """What the answer of a step, and what it leaves behind, depend on."""

    @abstractmethod
    def get_changes(self, step: Step) -> Things:
        """What a step may change."""

    @abstractmethod
    def get_renewed(self, step: Step) -> Things:
        """What a step makes anew from what it needs, whatever it was before."""

    def are_independent(self, one: Step, two: Step) -> bool:
        """Neither changes what the other needs or changes."""
        first, second = self.get_changes(one), self.get_changes(two)
        return not (first & (self.get_needs(two) | second)) and not (
            second & self.get_needs(one)
        )


class AloneBase(Relation):
    """What an operation does not concern answers the same without it.

    One operation is left out, and whatever depends on what it changed: of "update a,
    clone a into b, update b, update a" without "clone" also "update b". The answers of
    those that came after it and are still there must be the same. So a fork goes its own
    way, and reading changes nothing.
    """

    name = "alone"
    reach: ClassVar[type[Reach]]
    excused: ClassVar[Collection[str]] = ()

    def derive(self, history: History, choice: int) -> Derived | None:
        builder, reach = Builder(history), self.reach.of(history)
        missing: Things = set()
        left_out = 0
        for step in history.steps:
            if step.number == choice or reach.get_needs(step) & missing:
                missing |= reach.get_changes(step)
                left_out += 1
                continue
            missing -= reach.get_renewed(step)
            if step.number < choice:
                builder.add(step.op, step.tags)
            else:
                builder.take(step)
        what = "one operation" if left_out == 1 else f"{left_out} operations"
        return builder.build(f"without {what} on something else", self.excused)


class SwapBase(Relation):
    """Two operations, one right after the other, that do not concern each other answer
    the same in the other order: "update a, update b" as "update b, update a"."""

    name = "swap"
    reach: ClassVar[type[Reach]]
    excused: ClassVar[Collection[str]] = ()

    def list_choices(self, history: History) -> Sequence[int]:
        reach = self.reach.of(history)
        pairs = zip(history.steps, history.steps[1:], strict=False)
        return [two.number for one, two in pairs if reach.are_independent(one, two)]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        at = [step.number for step in history.steps].index(choice)
        for place in [*range(at - 1), at, at - 1, *range(at + 1, len(history.steps))]:
            builder.take(history.steps[place])
        return builder.build("with two operations in the other order", self.excused)
