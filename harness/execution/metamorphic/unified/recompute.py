"""Relation recompute of unified caches: only the tokens that are left count, not how they
came."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    PURE,
    Cell,
    UnifiedBook,
    has_kind,
    list_kinds,
)
from lockstep.harness.execution.metamorphic.unified.passes import add_rows, opens


class Recompute(Relation):
    """Whatever happened before, a cache goes on as a fresh one that was given the tokens
    that are left, sequence by sequence.

    A sequence that got the tokens 0, 1, 2 and lost the first: from there on all must be
    answered as in a fresh cache that got 1, 2 at the positions 0, 1. Tokens that several
    sequences share are each one's own in the fresh cache. There is room for that; and if
    only one of the two refuses something for it, nothing is claimed any more.
    """

    name = "recompute"

    def is_about(self, kind: str) -> bool:
        return kind in (*PURE, "recurrent")

    def list_choices(self, history: History) -> Sequence[int]:
        config = history.program.config
        if not {*list_kinds(config)} <= {*PURE, "recurrent"} or config["interval"]:
            return []
        choices = []
        is_recurrent = has_kind(config, "recurrent")
        for step, book in UnifiedBook.along(history):
            is_cut = is_recurrent and (book.has_copied or book.unsteady)
            if step.number and not book.is_muddled and not is_cut:
                choices.append(step.number)
        return choices

    def derive(self, history: History, choice: int) -> Derived | None:
        book, builder = UnifiedBook.before(history, choice), Builder(history)
        is_shared = book.is_shared() or any(map(has_shared, book.saved.values()))
        if is_shared:
            widen(builder)
        for name, cells in book.saved.items():
            self.feed(builder, cells)
            builder.add({"op": "save", "into": name})
            for owner in range(builder.config["sequences"]):
                gone = {"sequence": owner, "begin": 0, "end": None}
                builder.add({"op": "remove", **gone})
        self.feed(builder, book.cells)
        is_open = False
        for step in history.steps:
            is_open = is_open or (step.number >= choice and opens(step))
            if step.number >= choice and (is_open or step.name not in ("get", "put")):
                builder.take(step)
        words = "in a fresh cache that gets the tokens that are left"
        return builder.build(words, ("cache-full", "shared") if is_shared else ())

    def feed(self, builder: Builder, cells: Sequence[Cell]) -> None:
        """Sequence by sequence: what each holds, in the order in which it came."""
        for owner in sorted({owner for cell in cells for owner in cell.owners}):
            own = [cell for cell in cells if owner in cell.owners]
            add_rows(builder, [(cell.tag, cell.position, owner) for cell in own])


def has_shared(cells: Sequence[Cell]) -> bool:
    return any(len(cell.owners) > 1 for cell in cells)


def widen(builder: Builder) -> None:
    """Room for all that sequences share to be each one's own."""
    config, count = builder.config, builder.config["sequences"]
    config["capacity"] *= count
    config["caches"] = [
        {**part, "capacity": part["capacity"] * count} if "capacity" in part else part
        for part in config["caches"]
    ]
