"""Relation mask of unified caches: which tokens a row may see at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.fields import MAX_LENGTH
from lockstep.harness.execution.metamorphic.answers import View
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    UnifiedBook,
    get_first_seen,
)
from lockstep.harness.execution.metamorphic.unified.passes import (
    add_rows,
    is_going_on,
    is_pass,
    pick,
)

Pair = tuple[int, int]


class Mask(Relation):
    """What the rows of a pass see follows from full attention.

    Of a cache with a window or chunks: a fresh one without them is given the tokens that
    are left, and then the pass. Of what a row sees there, the cache must show what lies
    in its window, or chunk. Where a sequence steps back, some of that may have gone: then
    a row may see less, but nothing else.

    Of a causal or recurrent cache: if the first sequence of the pass holds tokens 0, 1, 2
    at 0, 1, 2, its rows see, and its state reads, what a layer cache does.
    """

    name = "mask"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "wrapper")

    def list_choices(self, history: History) -> Sequence[int]:
        if not self.is_about(history.program.kind):
            return []
        return [step.number for step in history.steps if is_pass(step)]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        if history.program.kind in ("causal", "recurrent"):
            return self.derive_layer(history, step)
        book, config = UnifiedBook.before(history, choice), history.program.config
        rows = len(step.op["positions"])
        builder = Builder(
            history,
            kind="causal",
            **dict.fromkeys(("window", "memory", "chunk")),
            capacity=len(book.cells) * config["sequences"] + rows,
        )
        for owner in sorted({*step.op["sequences"]}):
            own = book.get_cells(owner)
            add_rows(builder, [(cell.tag, cell.position, owner) for cell in own])
        op = {**step.op, "multimodal": []}
        other = builder.add(op, step.tags)
        is_whole = not config["memory"] and config["kind"] == "chunked"
        is_whole = is_whole or is_going_on(history, step)
        builder.claim(step, other, view=hide(step, config, is_whole))
        return builder.build("of full attention over the tokens that are left")

    def derive_layer(self, history: History, step: Step) -> Derived | None:
        book, op = UnifiedBook.before(history, step.number), step.op
        owner = op["sequences"][0]
        rows = [row for row, other in enumerate(op["sequences"]) if other == owner]
        cells = book.get_cells(owner)
        places = [cell.position for cell in cells]
        places += [op["positions"][row] for row in rows]
        if owner in book.unsteady or places != [*range(len(places))]:
            return None
        if op["except"] or op["multimodal"] or len(places) > MAX_LENGTH:
            return None
        kind = "state" if history.program.kind == "recurrent" else "kv"
        builder = Builder(history, contract="layer", kind=kind)
        tags = [cell.tag for cell in cells] + [step.tags[row] for row in rows]
        other = builder.add({"op": "update", "length": len(tags)}, tags)

        def view(answer: Answer) -> Answer:
            seen = [[*enumerate(row)] for row in answer["visible"][-len(rows) :]]
            return {"visible": seen, "states": answer["visible"][-1:]}

        builder.claim(step, other, pick(step.answer, op, rows), view, rows)
        return builder.build(f"of a {kind} layer that reads this sequence alone")


def hide(step: Step, config: Mapping[str, Any], is_whole: bool) -> View:
    """What of a row is in its window, or chunk. is_whole: all of that must be there."""

    def view(answer: Answer) -> Answer:
        rows: list[Sequence[Pair]] = []
        own = step.answer["visible"]
        for position, row, seen in zip(
            step.op["positions"], answer["visible"], own, strict=True
        ):
            first = get_first_seen(config, position)
            rows.append(
                [pair for pair in row if pair[0] >= first and (is_whole or pair in seen)]
            )
        return {"visible": rows}

    return view
