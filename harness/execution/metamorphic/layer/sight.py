"""Relations mask and edge of layer caches: which tokens are seen, up to the edge of a
window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.fields import MAX_LENGTH
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.execution.metamorphic.layer.book import LayerBook, add_update
from lockstep.harness.execution.metamorphic.relation import Relation


class Mask(Relation):
    """What an update sees, and what a cache shows when it is read, follows from one
    update of a fresh cache without a window, with all the tokens that are left.

    A window of 3 sees the last 3 of them, one with `keep` 1 the first and the last 2, a
    chunk of 4 those from the last multiple of 4 on. A state has read just what full
    attention sees, and the other way round: so both are held against each other.
    """

    name = "mask"

    def list_choices(self, history: History) -> Sequence[int]:
        seen = ("update", "state", "view", "size")
        return [step.number for step in history.steps if step.name in seen]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        tokens = list(LayerBook.before(history, choice).get(step.op["cache"]).tokens)
        if step.name == "update":
            tokens += step.tags
        if not 0 < len(tokens) <= MAX_LENGTH:
            return None
        config = history.program.config
        full = "state" if config["kind"] == "kv" and not config["chunk"] else "kv"
        changes: dict[str, Any] = {"window": None, "keep": 0, "chunk": None}
        if full == "state":
            changes["value_dim"] = config["value_dim"] or 1
        builder = Builder(history, kind=full, **changes)
        other = add_update(builder, "a", tokens)

        def view(answer: Answer) -> Answer:
            rows = [hide(row, config) for row in answer["visible"]]
            if step.name == "update":
                return {**answer, "visible": rows[-len(step.tags) :]}
            row = answer["visible"][-1] if config["chunk"] else rows[-1]
            return {"tags": row, "size": len(row)}

        builder.claim(step, other, view=view)
        words = "a state that has read" if full == "state" else "full attention over"
        return builder.build(f"of {words} the tokens that are left")


def hide(row: Sequence[int], config: Any) -> Sequence[int]:
    """What a query sees. row: all tokens up to its own, which is the last."""
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


class Edge(Relation):
    """Two plain programs, whatever the program did.

    One update with 2 tokens, when offsets 1 and 2 are scheduled: both are captured. A
    window of 4 that got 4 tokens can be trimmed; after 2 more, something has slid out of
    it, and it cannot.
    """

    name = "edge"

    def is_about(self, kind: str) -> bool:
        return kind != "state"

    def list_choices(self, history: History) -> Sequence[int]:
        own = [step.number for step in history.steps if step.name == "update"]
        return own[:1] if self.is_about(history.program.kind) else []

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        builder, window = Builder(history), history.program.config["window"]
        builder.add({"op": "prepare", "offsets": [1, 2]})
        builder.add({"op": "update", "length": 2})
        taken = builder.add({"op": "take", "into": ["r0", "r1"]})
        builder.promise(step, taken, {"ranges": [[0, 1], [1, 2]]})
        if window is not None:
            builder.add({"op": "free"})
            builder.add({"op": "update", "length": window})
            other = builder.add({"op": "trim", "count": 1})
            builder.promise(step, other, {"trimmed": 1})
            builder.add({"op": "update", "length": 2})
            other = builder.add({"op": "trim", "count": 1})
            builder.promise(step, other, {"trimmed": 0})
        return builder.build("at the edge of a window, or of a capture")
