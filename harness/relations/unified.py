"""The relations of unified caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.contracts.base import Op
from harness.contracts.unified.model import list_part_configs
from harness.contracts.unified.simpler import rename_owner
from harness.relations.derived import Builder, Derived, History, Step
from harness.relations.relation import Relation
from harness.relations.unified_book import (
    Cell,
    Reach,
    UnifiedBook,
    add_rows,
    can_save,
    has_kind,
    is_pass,
    list_kinds,
    open_book,
    opens,
    read_until,
)
from harness.relations.unified_ends import Image, Pieces, Resume
from harness.relations.unified_rows import Cut, Order
from harness.relations.unified_sight import Mask, Room

PURE = ("causal", "chunked")
"""Whoever takes a token keeps it until it is removed."""


class Rename(Relation):
    """Sequences and what was saved may have other names."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        return [1, -1] if history.program.config["sequences"] > 1 else []

    def derive(self, history: History, choice: int) -> Derived | None:
        count = history.program.config["sequences"]
        builder = Builder(history)
        new = {owner: (choice * owner + 1) % count for owner in range(count)}
        names = {"into": {"x": "y", "y": "x"}, "from": {"x": "y", "y": "x"}}
        for step in history.steps:
            op = dict(rename_owner(step.op, new))
            for field, others in names.items():
                if field in op:
                    op[field] = others.get(op[field], op[field])
            builder.take(step, **op)
        return builder.build("with the sequences renamed")


class Alone(Relation):
    """What an operation does not concern answers the same without it, unless there was no
    room for something."""

    name = "alone"

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step in history.steps[:-1] if "error" not in step.answer]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder, reach = Builder(history), Reach(history)
        missing: set[Any] = set()
        left_out = 0
        for step in history.steps:
            if step.number == choice or reach.get_needs(step) & missing:
                missing |= reach.get_changes(step)
                left_out += 1
                continue
            if is_pass(step) or step.name == "load":
                missing.discard("pass")
            if step.name == "save":
                missing -= reach.get_changes(step)
            if step.number < choice:
                builder.add(step.op, step.tags)
            else:
                builder.take(step)
        what = "one operation" if left_out == 1 else f"{left_out} operations"
        words = f"without {what} on something else"
        return builder.build(words, excused=("cache-full",))


class Swap(Relation):
    """Two neighbours that do not concern each other may come in either order."""

    name = "swap"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "swa", "swa-memory")

    def list_choices(self, history: History) -> Sequence[int]:
        reach = Reach(history)
        pairs = zip(history.steps, history.steps[1:], strict=False)
        return [two.number for one, two in pairs if is_free(one, two, reach)]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        at = [step.number for step in history.steps].index(choice)
        for place in [*range(at - 1), at, at - 1, *range(at + 1, len(history.steps))]:
            builder.take(history.steps[place])
        words = "with two operations in the other order"
        return builder.build(words, excused=("cache-full",))


def is_free(first: Step, second: Step, reach: Reach) -> bool:
    """Neither changes what the other needs or changes."""
    one, two = reach.get_changes(first), reach.get_changes(second)
    needs = reach.get_needs(first), reach.get_needs(second)
    return not (one & (needs[1] | two)) and not (two & needs[0])


class Recompute(Relation):
    """Whatever happened, a cache goes on as a fresh one that gets the tokens that are
    left. Those that sequences shared are each one's own there: what depends on that is
    excused."""

    name = "recompute"

    def is_about(self, kind: str) -> bool:
        return kind in (*PURE, "recurrent")

    def list_choices(self, history: History) -> Sequence[int]:
        config = history.program.config
        if not {*list_kinds(config)} <= {*PURE, "recurrent"} or config["interval"]:
            return []
        choices, book = [], open_book(history)
        is_recurrent = has_kind(config, "recurrent")
        for step in history.steps:
            cuts = is_recurrent and (book.has_copied or book.unsteady)
            if step.number and not book.is_muddled and not cuts:
                choices.append(step.number)
            book.write(step)
        return choices

    def derive(self, history: History, choice: int) -> Derived | None:
        book, builder = read_until(history, choice), Builder(history)
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


class Part(Relation):
    """A cache in a wrapper answers as if it were alone, as long as all take all."""

    name = "part"

    def is_about(self, kind: str) -> bool:
        return kind == "wrapper"

    def list_choices(self, history: History) -> Sequence[int]:
        return [*range(len(history.program.config["caches"]))]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = dict(list_part_configs(history.program.config)[choice])
        if config["kind"] != "recurrent":
            config |= {"slots": None, "interval": None, "checkpoints": 1}
        builder = Builder(history, **config)
        for step in history.steps:
            error = step.answer.get("error")
            if error and error != "usage":
                break  # some may have changed before one refused
            if "type" in step.op and step.op["type"] != choice:
                continue
            alone = {"type": 0} if "type" in step.op else {}
            other = builder.add({**step.op, **alone}, step.tags)
            if "caches" in step.answer:
                builder.claim(
                    step,
                    other,
                    {"caches": [step.answer["caches"][choice]]},
                    view=lambda answer: {"caches": [answer]},
                )
            elif step.answer.get("result") is not False:
                builder.claim(step, other)
        return builder.build("of that cache alone")


class Return(Relation):
    """To come back is never to have left."""

    name = "return"

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        config = history.program.config
        choices: list[Any] = []
        book = open_book(history)
        for step in history.steps:
            if book.cells and not book.is_muddled:
                ways = ["load", "fresh"] if can_save(config) else []
                if config["sequences"] > len(book.list_known()):
                    ways += [] if has_kind(config, "encoder") else ["fork"]
                if {*list_kinds(config)} <= {*PURE} and not book.is_shared():
                    ways.append("replay")
                choices += [(step.number, way) for way in ways]
            book.write(step)
        return choices

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        book, builder = read_until(history, number), Builder(history)
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
        return builder.build(f"after a detour ({WAYS[way]})")

    def detour(self, builder: Builder, step: Step, way: str, book: UnifiedBook) -> None:
        owner = book.get_owners()[-1]
        end = book.peaks.get(owner, 0)
        forget: Op = {"op": "remove", "sequence": owner, "begin": 0, "end": None}
        if way in ("load", "fresh"):
            builder.add({"op": "save", "into": "r0"})
            builder.add(make_pass([end, end + 1], owner, builder))
            builder.add({"op": "remove", "sequence": owner, "begin": 1, "end": 2})
            builder.add(forget)
            builder.add(make_pass([0], owner, builder))
            builder.add({"op": "load", "from": "r0", "fresh": way == "fresh"})
        elif way == "fork":
            count = builder.config["sequences"]
            free = min({*range(count)} - book.list_known())
            fork = {"source": owner, "target": free, "length": end}
            builder.add({"op": "copy_prefix", **fork})
            builder.add({**forget, "sequence": free})
        else:
            cells = book.get_cells(owner)
            begin = sorted(cell.position for cell in cells)[len(cells) // 2]
            asked = {"sequence": owner, "position": begin}
            other = builder.add({"op": "can_resume", **asked})
            builder.promise(step, other, {"result": True})
            builder.add({**forget, "begin": begin})
            again = [cell for cell in cells if cell.position >= begin]
            add_rows(builder, [(cell.tag, cell.position, owner) for cell in again])


def make_pass(positions: Sequence[int], owner: int, builder: Builder) -> Op:
    positions = positions[: builder.config["batch"]]
    owners = [owner] * len(positions)
    return {"op": "forward", "positions": list(positions), "sequences": owners}


WAYS = {
    "load": "save, other tokens, load",
    "fresh": "save, other tokens, load into a fresh cache",
    "fork": "a sequence is copied, and the copy removed",
    "replay": "an end is removed, the same tokens again",
}

RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Order(),
    Alone(),
    Swap(),
    Rename(),
    Part(),
    Return(),
    Mask(),
    Room(),
    Pieces(),
    Resume(),
    Image(),
)
