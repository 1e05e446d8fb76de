"""Relations of unified caches about what a row may see at all, and how much there is room
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.contracts.base import Answer
from harness.contracts.fields import MAX_LENGTH
from harness.contracts.unified.model import list_part_configs
from harness.relations.derived import Builder, Derived, History, Step, View
from harness.relations.relation import Relation
from harness.relations.unified_book import (
    add_rows,
    find_step,
    has_kind,
    is_pass,
    list_kinds,
    read_until,
)
from harness.relations.unified_rows import choose_rows, is_going_on, pick

Pair = tuple[int, int]


class Mask(Relation):
    """A window or a chunk is a mask over full attention, less what may have gone where a
    sequence steps back; and the full attention of a sequence that only goes on is that of
    a layer cache, its state that of a layer."""

    name = "mask"

    def is_about(self, kind: str) -> bool:
        return kind not in ("encoder", "wrapper")

    def list_choices(self, history: History) -> Sequence[int]:
        if not self.is_about(history.program.kind):
            return []
        return [step.number for step in history.steps if is_pass(step)]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = find_step(history, choice)
        if history.program.kind in ("causal", "recurrent"):
            return self.derive_layer(history, step)
        book, config = read_until(history, choice), history.program.config
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
        book, op = read_until(history, step.number), step.op
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

    def get_first(position: int) -> int:
        if config["chunk"]:
            return position - position % int(config["chunk"])
        return position - config["window"] if config["window"] else 0

    def view(answer: Answer) -> Answer:
        rows: list[Sequence[Pair]] = []
        own = step.answer["visible"]
        for position, row, seen in zip(
            step.op["positions"], answer["visible"], own, strict=True
        ):
            first = get_first(position)
            rows.append(
                [pair for pair in row if pair[0] >= first and (is_whole or pair in seen)]
            )
        return {"visible": rows}

    return view


def get_memory(config: Mapping[str, Any]) -> int:
    return int(config["window" if config["kind"] == "swa" else "memory"])


def forgets(config: Mapping[str, Any]) -> bool:
    """Whether less is remembered than there is room for, whatever is rounded up."""
    memory = get_memory(config)
    return bool(config["window"]) and 0 < memory < config["capacity"] - 1


class Room(Relation):
    """Whether there is room depends on how many tokens are stored, not on how they came
    or whose they are: for as many as was promised, and for no more."""

    name = "room"
    most = 400

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        config = history.program.config
        kinds = {*list_kinds(config)}
        if kinds <= {"swa", "swa-memory"}:
            own = [one for one in history.steps if one.name == "forward"]
            return [(one.number, "going on") for one in own] if forgets(config) else []
        if not kinds <= {"causal", "chunked", "encoder", "recurrent"}:
            return []
        if kinds == {"encoder"} or self.get_room(config) > self.most:
            return []
        choices: list[Any] = []
        for step in history.steps:
            if step.name == "forward" and not step.op["reserve"]:
                choices += [(step.number, way) for way in ("whole", "beyond")]
                if not has_kind(config, "recurrent"):
                    choices.append((step.number, "same"))
        return choices

    def get_room(self, config: Mapping[str, Any]) -> int:
        parts = list_part_configs(config)
        sizes = [part["capacity"] for part in parts if part["kind"] != "encoder"]
        return int(min(sizes)) * int(config["sequences"])

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        step, builder = find_step(history, number), Builder(history)
        config = history.program.config
        if way == "same":
            book = read_until(history, number)
            error = step.answer.get("error")
            if book.is_muddled or error not in (None, "cache-full"):
                return None
            self.fill(builder, 0, len(book.cells))
            rows = range(len(step.op["positions"]))
            op = choose_rows({**step.op, "except": [], "multimodal": []}, rows)
            op |= {"positions": [len(book.cells) + row for row in rows]}
            other = builder.add({**op, "sequences": [0] * len(rows)})
            builder.claim(step, other, {"error": error} if error else {})
            return builder.build("where a single sequence has stored as many tokens")
        if way == "going on":
            return self.go_on(builder, step)
        room = self.get_room(config)
        last = self.fill(builder, 0, room)
        if way == "whole":
            builder.promise(step, last, {})
            return builder.build("what a cache of this capacity has room for")
        last = self.fill(builder, room, config["cache_padding"])
        builder.promise(step, last, {"error": "cache-full"})
        return builder.build("more than a cache of this capacity has room for")

    def go_on(self, builder: Builder, step: Step) -> Derived | None:
        """Every sequence goes on for longer than anything is remembered."""
        config = builder.config
        length = get_memory(config) + 3
        if length * config["sequences"] > self.most:
            return None
        for owner in [*range(config["sequences"]), 0]:
            begin = length if owner == 0 and builder.ops else 0
            rows = [(-1, begin + at, owner) for at in range(length)]
            for other in add_rows(builder, rows):
                builder.promise(step, other, {})
        return builder.build("of sequences that only go on, and forget in time")

    def fill(self, builder: Builder, begin: int, count: int) -> int:
        """Stores so many tokens of one sequence, in passes that each show only the last
        few; the number of the last pass."""
        rows = [(-1, begin + at, 0) for at in range(count)]
        return [0, *add_rows(builder, rows)][-1]
