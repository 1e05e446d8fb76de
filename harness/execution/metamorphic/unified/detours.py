"""Relation return of unified caches: to come back is never to have left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.unified.model import CAUSAL
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    UnifiedBook,
    has_kind,
    is_pure,
)
from lockstep.harness.execution.metamorphic.unified.passes import add_new, add_rows, opens

DETOURS = {
    "load": "save, other tokens, load",
    "fresh": "save, other tokens, load into a fresh cache",
    "fork": "a sequence is copied, and the copy removed",
    "replay": "an end is removed, the same tokens again",
}


class Return(Relation):
    """After a detour that ends where it began, all is as if nothing had been.

    Before one step of the program, a sequence is led away by one of `DETOURS` and back:
    say, saved, given other tokens, loaded. From that step on all must be answered as
    before.
    """

    name = "return"

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        config = history.program.config
        choices: list[Any] = []
        for step, book in UnifiedBook.along(history):
            if book.cells and not book.is_muddled:
                ways = ["load", "fresh"] if config["kind"] in CAUSAL else []
                if config["sequences"] > len(book.list_known()):
                    ways += [] if has_kind(config, "encoder") else ["fork"]
                if is_pure(config) and not book.is_shared():
                    ways.append("replay")
                choices += [(step.number, way) for way in ways]
        return choices

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        book, builder = UnifiedBook.before(history, number), Builder(history)
        is_open = True
        for step in history.steps:
            if step.number == number:
                self.detour(builder, step, way, book)
                is_open = False
            is_open = is_open or opens(step)
            if step.number < number:
                builder.add(step.op, step.tags)
            elif is_open or step.name not in ("get", "put"):
                builder.take(step)
        return builder.build(f"after a detour ({DETOURS[way]})")

    def detour(self, builder: Builder, step: Step, way: str, book: UnifiedBook) -> None:
        """Of the last sequence that holds something."""
        owner = book.get_owners()[-1]
        if way == "replay":
            self.replay(builder, step, owner, book)
        elif way == "fork":
            self.fork(builder, owner, book)
        else:
            self.load(builder, way, owner, book.peaks.get(owner, 0))

    def load(self, builder: Builder, way: str, owner: int, end: int) -> None:
        builder.add({"op": "save", "into": "r0"})
        add_new(builder, owner, [end, end + 1][: builder.config["batch"]])
        remove(builder, owner, 1, 2)
        remove(builder, owner, 0)
        add_new(builder, owner, [0])
        builder.add({"op": "load", "from": "r0", "fresh": way == "fresh"})

    def fork(self, builder: Builder, owner: int, book: UnifiedBook) -> None:
        free = min({*range(builder.config["sequences"])} - book.list_known())
        fork = {"source": owner, "target": free, "length": book.peaks.get(owner, 0)}
        builder.add({"op": "copy_prefix", **fork})
        remove(builder, free, 0)

    def replay(self, builder: Builder, step: Step, owner: int, book: UnifiedBook) -> None:
        """The later half goes and comes again; so it must be possible to go on there."""
        cells = book.get_cells(owner)
        begin = sorted(cell.position for cell in cells)[len(cells) // 2]
        asked = {"op": "can_resume", "sequence": owner, "position": begin}
        builder.promise(step, builder.add(asked), {"result": True})
        remove(builder, owner, begin)
        again = [cell for cell in cells if cell.position >= begin]
        add_rows(builder, [(cell.tag, cell.position, owner) for cell in again])


def remove(builder: Builder, owner: int, begin: int, end: int | None = None) -> None:
    builder.add({"op": "remove", "sequence": owner, "begin": begin, "end": end})
