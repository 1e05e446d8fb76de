"""Relation resume of unified caches: where a sequence can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.execution.metamorphic.answers import DETOUR
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    SLIDING,
    UnifiedBook,
    forgets,
    get_first_seen,
    get_memory,
    list_seen,
)
from lockstep.harness.execution.metamorphic.unified.passes import add_new


class Resume(Relation):
    """Where can_resume says yes, a sequence can go on: there the next token sees all that
    it should. And can_resume must say yes where nothing was ever removed.

    A choice is (step, how far from the end of a sequence), with 0: ask the sequences from
    which nothing was removed. With a window of 2, for a sequence with tokens 0 to 5, 2
    from the end: if it can go on at position 4, then after a removal from there a new
    token at position 4 must see 2 and 3 and itself.

    Two are plain programs. "forgotten", of windows: a sequence goes on for long, and is
    asked for a place whose window was let go of. "checkpoint", of states: a state is put
    aside after the first pass; so after a second one it can go on from there.
    """

    name = "resume"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "wrapper")

    def list_choices(self, history: History) -> Sequence[Any]:
        if not self.is_about(history.program.kind):
            return []
        ways = [0, 1, 2, 4, *list_plain(history.program.config)]
        choices: list[Any] = []
        for step, book in UnifiedBook.along(history):
            if book.get_owners():
                choices += [(step.number, way) for way in ways]
        return choices

    def derive(self, history: History, choice: tuple[int, Any]) -> Derived | None:
        number, less = choice
        if less == "forgotten":
            return go_back_too_far(history, history.get_step(number))
        if less == "checkpoint":
            return go_back_one(history, history.get_step(number))
        book, builder = UnifiedBook.before(history, number), Builder(history)
        step = history.get_step(number)
        for before in history.steps:
            if before.number < number:
                builder.add(before.op, before.tags)
        if not less:
            return self.ask(builder, history, step, book)
        ends = {owner: len(book.get_cells(owner)) for owner in book.get_owners()}
        long = [one for one in ends if one not in book.unsteady and ends[one] >= less]
        if not long:
            return None
        owner, at = long[number % len(long)], ends[long[number % len(long)]] - less
        asked = {"op": "can_resume", "sequence": owner, "position": at}
        builder.suppose(step, builder.add(asked), {"result": True})
        gone = {"op": "remove", "sequence": owner, "begin": at, "end": None}
        builder.promise(step, builder.add(gone), {})
        other = builder.add({"op": "forward", "positions": [at], "sequences": [owner]})
        builder.promise(step, other, self.expect(history, book, owner, at))
        words = "where the next token must see its whole window"
        return builder.build(words, excused=("cache-full",))

    def expect(self, history: History, book: UnifiedBook, owner: int, at: int) -> Answer:
        """What a new token at this position must see."""
        config = history.program.config
        first = get_first_seen(config, at)
        cells = [cell for cell in book.get_cells(owner) if cell.position < at]
        seen = [(cell.position, cell.tag) for cell in cells if cell.position >= first]
        answer: Answer = {"visible": [[*seen, (at, DETOUR)]]}
        if config["kind"] == "recurrent":
            answer["states"] = [[*(cell.tag for cell in cells), DETOUR]]
        return answer

    def ask(
        self, builder: Builder, history: History, step: Step, book: UnifiedBook
    ) -> Derived | None:
        """Every sequence that only ever went on can go on at its end, and earlier too
        while it fits into a window."""
        config, asked = history.program.config, 0
        for owner in book.get_owners():
            end = len(book.get_cells(owner))
            is_fresh = owner not in book.unsteady and book.peaks.get(owner) == end
            if not is_fresh or (book.has_copied and config["kind"] == "recurrent"):
                continue
            places = [end]
            if config["kind"] != "recurrent" and end <= (config["window"] or end):
                places.append(end // 2)
            for at in places:
                op = {"op": "can_resume", "sequence": owner, "position": at}
                builder.promise(step, builder.add(op), {"result": True})
                asked += 1
        return builder.build("of a sequence that only ever went on") if asked else None


def list_plain(config: Mapping[str, Any]) -> list[str]:
    """The plain programs that a cache of this config can be asked."""
    if config["kind"] in SLIDING and forgets(config):
        return ["forgotten"]
    keeps = config["interval"] and (config["interval"] > 1 or config["checkpoints"] > 1)
    return ["checkpoint"] if keeps else []


def go_back_too_far(history: History, step: Step) -> Derived | None:
    """With a window of 2 and a memory of 3, after the tokens 0 to 6: what is kept begins
    at 3, so that a token at 4 would miss the one at 2. What is remembered may be one more
    than the config says, to have room; so every other time one more token comes."""
    builder, config = Builder(history), history.program.config
    window = config["window"]
    last = get_memory(config) + window + 1 + step.number % 2
    add_new(builder, 0, range(last))
    add_new(builder, 0, [last])
    at = 2 * window
    asked = {"op": "can_resume", "sequence": 0, "position": at}
    builder.suppose(step, builder.add(asked), {"result": True})
    go_on_at(builder, step, at, {"visible": [list_seen(config, at)]})
    return builder.build("where the next token must see its whole window")


def go_back_one(history: History, step: Step) -> Derived | None:
    builder, config = Builder(history), history.program.config
    for at in range(2):
        add_new(builder, 0, [at])
    asked = {"op": "can_resume", "sequence": 0, "position": 1}
    builder.promise(step, builder.add(asked), {"result": True})
    seen = {"visible": [list_seen(config, 1)], "states": [[DETOUR, DETOUR]]}
    go_on_at(builder, step, 1, seen)
    return builder.build("of a state that was put aside after the first pass")


def go_on_at(builder: Builder, step: Step, at: int, answer: Answer) -> None:
    """Sequence 0 loses what it has from a position on, and goes on there."""
    gone = {"op": "remove", "sequence": 0, "begin": at, "end": None}
    builder.promise(step, builder.add(gone), {})
    (other,) = add_new(builder, 0, [at])
    builder.promise(step, other, answer)
