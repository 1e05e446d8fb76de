"""The relations that hold for every family. What they need to know of one, its shadow
state tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.execution.metamorphic.derived import (
    Builder,
    Derived,
    History,
    Relation,
    Step,
    pick,
)


class Recompute(Relation):
    """A cache goes on as a fresh one that was given the tokens that are left.

    Update with 4 tokens, trim by 1, update with 2 tokens: the last one must answer what
    it answers in a fresh cache that got the tokens 0, 1, 2 in one update.
    """

    name = "recompute"

    def list_choices(self, history: History) -> Sequence[int]:
        steps = [step for step, state in history.along() if state.may_interrupt(step)]
        return [step.number for step in steps if step is not history.steps[0]]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        if not history.before(choice).rebuild(builder):
            return None
        for step in history.steps:
            if step.number >= choice:
                builder.take(step)
        return builder.build("fresh caches given the tokens that are left")


class Cut(Relation):
    """Tokens may come at once or in parts: an update with 3 tokens answers what one with
    1 token and one with 2 answer together. A choice is (step, way to cut it)."""

    name = "cut"

    def list_choices(self, history: History) -> Sequence[Any]:
        return [
            (step.number, way)
            for step, state in history.along()
            for way in range(len(state.list_cuts(step)))
        ]

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, way = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                self.cut(builder, step, history.before(number).list_cuts(step)[way])
            elif step.number < number or not history.shadow.ends_with_cut:
                builder.take(step)
        return builder.build("the program with one operation cut in two")

    def cut(self, builder: Builder, step: Step, parts: Sequence[Any]) -> None:
        for op, rows in parts:
            other = builder.add(op, [step.tags[row] for row in rows])
            is_last = rows is parts[-1][1]
            answer = pick(step.answer, step.op, rows, rest=is_last)
            builder.claim(step, other, answer, rows=rows)


class Rename(Relation):
    """Names mean nothing: with others, all answers are the same."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder, state = Builder(history), history.before()
        for step in history.steps:
            other = builder.add(state.rename(step.op), step.tags)
            builder.claim(step, other, view=state.rename_answer)
        if builder.ops == [step.op for step in history.steps]:
            return None
        return builder.build("the program with other names")


class Return(Relation):
    """After a detour that ends where it began, all is as if nothing had been: snapshot,
    other tokens, restore. What the detour itself answers is claimed too. A choice is
    (step that the detour comes before, detour)."""

    name = "return"

    def list_choices(self, history: History) -> Sequence[Any]:
        return [
            (step.number, detour)
            for step, state in history.along()
            if state.may_interrupt(step)
            for detour in state.list_detours(step)
        ]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, detour = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number < number:
                builder.add(step.op, step.tags)
                continue
            if step.number == number:
                history.before(number).take_detour(detour, builder, step)
            builder.take(step)
        return builder.build(f"the program after a detour ({detour})")


class Mask(Relation):
    """A window, a chunk and a state are masks over plain attention: what a step shows
    follows from one plain pass over the tokens that are left."""

    name = "mask"

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step in history.steps]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        derived: Derived | None = history.before(choice).derive_mask(history, step)
        return derived


Case = Callable[[Builder, Step], None]


class Cases(Relation):
    """Plain programs with known answers, whatever the program did: that a cache takes as
    many tokens as its capacity says. A choice is (step, description of a case).

    Args:
        name: of the relation.
        operation: of the steps that a contradiction can be blamed on.
        cases: description → adds operations and promises to a derived program, or
            nothing where the config has no such case.
    """

    def __init__(self, name: str, operation: str, cases: Mapping[str, Case]) -> None:
        self.name, self.operation, self.cases = name, operation, cases

    def list_choices(self, history: History) -> Sequence[Any]:
        steps = [step for step in history.steps if step.name == self.operation]
        return [(step.number, case) for step in steps for case in self.cases]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, case = choice
        builder = Builder(history)
        self.cases[case](builder, history.get_step(number))
        return builder.build(case)


GENERIC = (Recompute(), Cut(), Rename(), Return(), Mask())
