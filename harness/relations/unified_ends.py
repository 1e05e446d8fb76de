"""Relations of unified caches about what is removed, and where one can go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.contracts.base import Answer
from harness.relations.derived import DETOUR, Builder, Derived, History, Step
from harness.relations.relation import Relation
from harness.relations.unified_book import (
    UnifiedBook,
    find_step,
    has_kind,
    is_pass,
    open_book,
    read_until,
)


class Pieces(Relation):
    """What is removed may go in two pieces, the later one first."""

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


class Image(Relation):
    """Of several images in a pass the last one counts."""

    name = "image"

    def is_about(self, kind: str) -> bool:
        return kind == "encoder"

    def list_choices(self, history: History) -> Sequence[int]:
        return [
            step.number
            for step in history.steps
            if is_pass(step) and len(step.op["multimodal"]) > 1
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        for step in history.steps:
            if step.number == choice:
                builder.take(step, multimodal=[max(step.op["multimodal"])])
            else:
                builder.take(step)
        return builder.build("with only the last image of one pass")


class Resume(Relation):
    """Where a sequence can go on, the next token sees all that it should; and it can go
    on where nothing was ever removed from it."""

    name = "resume"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "wrapper")

    def list_choices(self, history: History) -> Sequence[Any]:
        if not self.is_about(history.program.kind):
            return []
        choices: list[Any] = []
        book = open_book(history)
        for step in history.steps:
            if book.get_owners():
                choices += [(step.number, less) for less in (0, 1, 2, 4)]
            book.write(step)
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, less = choice
        book, builder = read_until(history, number), Builder(history)
        step = find_step(history, number)
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
        first = at - config["window"] if config["window"] else 0
        if config["chunk"]:
            first = at - at % config["chunk"]
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
