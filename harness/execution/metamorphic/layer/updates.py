"""Relations recompute and cut of layer caches: only the tokens that are left count, not
how they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.layer.operation import MAX_CACHES
from lockstep.harness.core.fields import MAX_LENGTH
from lockstep.harness.execution.metamorphic.answers import see_rows
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.layer.book import LayerBook, add_update
from lockstep.harness.execution.metamorphic.relation import Relation


class Recompute(Relation):
    """Whatever happened before, caches and snapshots go on as fresh ones that were given
    the tokens that are left, each in one update.

    Update with 4 tokens, trim by 1, update with 2 tokens: the last one must answer what
    it answers in a fresh cache that got the tokens 0, 1, 2 in one update.
    """

    name = "recompute"

    def list_choices(self, history: History) -> Sequence[int]:
        return [
            step.number
            for step, book in LayerBook.along(history)
            if step.number and not book.is_scheduled()
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        book, builder = LayerBook.before(history, choice), Builder(history)
        names = iter(f"r{number}" for number in range(MAX_CACHES))
        if len(book.caches) + len(book.snapshots) > MAX_CACHES - 3:
            return None
        for name, held in book.snapshots.items():
            if not 0 < held.end == len(held.tokens) <= MAX_LENGTH:
                return None
            scratch = next(names)
            add_update(builder, scratch, held.tokens)
            builder.add(
                {"op": "snapshot", "from": held.begin, "into": name, "cache": scratch}
            )
        for name, cache in book.caches.items():
            if len(cache.tokens) > MAX_LENGTH:
                return None
            if cache.tokens:
                add_update(builder, name, cache.tokens)
        for step in history.steps:
            if step.number >= choice:
                builder.take(step)
        return builder.build("in fresh caches that get the tokens that are left")


class Cut(Relation):
    """In how many updates tokens come changes nothing: an update with 3 tokens answers
    what one with 1 token and one with 2 answer together, and two updates of one cache in
    a row what one with all their tokens answers.

    A choice is (step, where the update is cut), or (step, 0): it is joined with the one
    before it.
    """

    name = "cut"

    def list_choices(self, history: History) -> Sequence[Any]:
        choices: list[Any] = []
        before: Step | None = None
        for step in history.steps:
            length = step.op.get("length", 0)
            if step.name == "update" and length > 1:
                cuts = sorted({1, length // 2, length - 1})
                choices += [(step.number, at) for at in cuts]
            if before and is_joint(before, step):
                choices.append((step.number, 0))
            before = step
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, at = choice
        builder = Builder(history)
        for step, following in zip(
            history.steps, [*history.steps[1:], None], strict=True
        ):
            if at and step.number == number:
                self.split(builder, step, at)
            elif not at and following and following.number == number:
                self.join(builder, step, following)
            elif at or step.number != number:
                builder.take(step)
        return builder.build("with one update cut in two" if at else "with two joined")

    def split(self, builder: Builder, step: Step, at: int) -> None:
        cache, rows = step.op["cache"], step.answer["visible"]
        first = add_update(builder, cache, step.tags[:at])
        second = add_update(builder, cache, step.tags[at:])
        builder.claim(step, first, {"visible": rows[:at]})
        rest = {**step.answer, "visible": rows[at:]}
        builder.claim(step, second, rest, rows=range(at, len(rows)))

    def join(self, builder: Builder, first: Step, second: Step) -> None:
        tags = [*first.tags, *second.tags]
        other = add_update(builder, first.op["cache"], tags)
        rows, more = first.answer["visible"], second.answer["visible"]
        builder.claim(first, other, {"visible": rows}, see_rows(0, len(rows)))
        after = see_rows(len(rows), len(more))
        builder.claim(second, other, second.answer, after)


def is_joint(first: Step, second: Step) -> bool:
    """Whether two steps can be one update."""
    return (
        first.name == second.name == "update"
        and first.op["cache"] == second.op["cache"]
        and first.op["length"] + second.op["length"] <= MAX_LENGTH
    )
