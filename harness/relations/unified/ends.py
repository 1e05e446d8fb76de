"""Relations pieces and resume of unified caches: what is removed, and where a sequence
can go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.contracts.base import Answer
from harness.relations.answers import DETOUR
from harness.relations.derived import Builder, Derived
from harness.relations.history import History, Step
from harness.relations.relation import Relation
from harness.relations.unified.book import UnifiedBook, get_first_seen, has_kind


class Pieces(Relation):
    """What is removed may go in two pieces, the later one first: positions 1 to 3 as 3,
    and then 1 and 2."""

    name = "pieces"

    def is_about(self, kind: str) -> bool:
        return kind != "recurrent"

    def list_choices(self, history: History) -> Sequence[Any]:
        if has_kind(history.program.config, "recurrent"):
            return []
        choices: list[Any] = []
        for step in history.steps:
            if step.name == "remove" and "error" not in step.answer:
                begin, end = step.op["begin"], step.op["end"]
                stops = (begin + 1, begin + 2) if end is None else (begin + 1, end - 1)
                last = stops[1] if end is None else end - 1
                middles = [at for at in stops if begin < at <= last]
                choices += [(step.number, at) for at in dict.fromkeys(middles)]
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, middle = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                builder.add({**step.op, "begin": middle})
                builder.take(step, end=middle)
            else:
                builder.take(step)
        return builder.build("with one removal in two pieces")


class Resume(Relation):
    """Where can_resume says yes, a sequence can go on: there the next token sees all that
    it should. And can_resume must say yes where nothing was ever removed.

    A choice is (step, how far from the end of a sequence), with 0: ask the sequences from
    which nothing was removed. With a window of 2, for a sequence with tokens 0 to 5, 2
    from the end: if it can go on at position 4, then after a removal from there a new
    token at position 4 must see 2 and 3 and itself.
    """

    name = "resume"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "wrapper")

    def list_choices(self, history: History) -> Sequence[Any]:
        if not self.is_about(history.program.kind):
            return []
        choices: list[Any] = []
        for step, book in UnifiedBook.along(history):
            if book.get_owners():
                choices += [(step.number, less) for less in (0, 1, 2, 4)]
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, less = choice
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
