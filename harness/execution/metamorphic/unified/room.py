"""Relation room of unified caches: how many tokens there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.unified.model import list_part_configs
from lockstep.harness.execution.metamorphic.derived import Builder, Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import (
    SLIDING,
    UnifiedBook,
    forgets,
    get_memory,
    has_kind,
    is_pure,
    list_kinds,
    list_seen,
)
from lockstep.harness.execution.metamorphic.unified.passes import add_new, choose_rows


class Room(Relation):
    """How much there is room for.

    A choice is (step, way). "full": a cache of this capacity must take as many tokens. It
    must refuse what is more than that and the padding, and nothing of what was refused
    may stay. "copied": where one token fewer is stored, and then copied,
    there is still room for one. "same": whether there is room depends on how many tokens
    are stored, not on how they came or whose they are. "going on", of windows: sequences
    that only go on forget in time, so that there is always room.
    """

    name = "room"
    most = 400

    def is_about(self, kind: str) -> bool:
        return kind != "encoder"

    def list_choices(self, history: History) -> Sequence[Any]:
        config = history.program.config
        kinds = {*list_kinds(config)}
        if kinds <= {*SLIDING}:
            own = [one for one in history.steps if one.name == "forward"]
            return [(one.number, "going on") for one in own] if forgets(config) else []
        if not kinds <= {"causal", "chunked", "encoder", "recurrent"}:
            return []
        if kinds == {"encoder"} or self.get_room(config) > self.most:
            return []
        choices: list[Any] = []
        for step in history.steps:
            if step.name == "forward" and not step.op["reserve"]:
                choices.append((step.number, "full"))
                if not has_kind(config, "recurrent"):
                    choices.append((step.number, "same"))
                if is_pure(config) and config["sequences"] > 1:
                    choices.append((step.number, "copied"))
        return choices

    def get_room(self, config: Mapping[str, Any]) -> int:
        parts = list_part_configs(config)
        sizes = [part["capacity"] for part in parts if part["kind"] != "encoder"]
        return int(min(sizes)) * int(config["sequences"])

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        step, builder = history.get_step(number), Builder(history)
        config = history.program.config
        if way == "same":
            return self.store_as_many(builder, step, UnifiedBook.before(history, number))
        if way == "going on":
            return self.go_on(builder, step)
        room = self.get_room(config)
        if way == "copied":
            return self.copy(builder, step, room)
        last = self.fill(builder, 0, room)
        builder.promise(step, last, {})
        last = self.fill(builder, room, config["cache_padding"])
        builder.promise(step, last, {"error": "cache-full"})
        if not has_kind(config, "recurrent"):
            self.write_last_again(builder, step, room)
        return builder.build("what a cache of this capacity has room for, and then more")

    def store_as_many(
        self, builder: Builder, step: Step, book: UnifiedBook
    ) -> Derived | None:
        """A pass with as many rows, where sequence 0 alone holds as many tokens."""
        error = step.answer.get("error")
        if book.is_muddled or error not in (None, "cache-full"):
            return None
        held = len(book.cells)
        self.fill(builder, 0, held)
        rows = range(len(step.op["positions"]))
        op = choose_rows({**step.op, "except": [], "multimodal": []}, rows)
        op |= {"positions": [held + row for row in rows], "sequences": [0] * len(rows)}
        builder.claim(step, builder.add(op), {"error": error} if error else {})
        return builder.build("where a single sequence has stored as many tokens")

    def write_last_again(self, builder: Builder, step: Step, room: int) -> None:
        """The last token goes, and one that takes its place must see what it saw. If keys
        can be turned, what comes after the gap moves up: so what was refused, and stayed
        nevertheless, would be seen."""
        gone = {"sequence": 0, "begin": room - 1, "end": None}
        if builder.config["shift"]:
            gone["end"] = room
        builder.promise(step, builder.add({"op": "remove", **gone}), {})
        (last,) = add_new(builder, 0, [room - 1])
        parts = [
            {} if part["kind"] == "encoder" else {"visible": [list_seen(part, room - 1)]}
            for part in list_part_configs(builder.config)
        ]
        is_wrapper = builder.config["kind"] == "wrapper"
        builder.promise(step, last, {"caches": parts} if is_wrapper else parts[0])

    def copy(self, builder: Builder, step: Step, room: int) -> Derived | None:
        self.fill(builder, 0, room - 1)
        fork = {"source": 0, "target": 1, "length": room - 1}
        builder.add({"op": "copy_prefix", **fork})
        (last,) = add_new(builder, 0, [room - 1])
        builder.promise(step, last, {})
        return builder.build("where all tokens but one are stored, and copied")

    def go_on(self, builder: Builder, step: Step) -> Derived | None:
        """Every sequence goes on for longer than anything is remembered."""
        config = builder.config
        length = get_memory(config) + 3
        if length * config["sequences"] > self.most:
            return None
        for owner in [*range(config["sequences"]), 0]:
            begin = length if owner == 0 and builder.ops else 0
            for other in add_new(builder, owner, range(begin, begin + length)):
                builder.promise(step, other, {})
        return builder.build("of sequences that only go on, and forget in time")

    def fill(self, builder: Builder, begin: int, count: int) -> int:
        """Stores so many tokens of one sequence, in passes that each show only the last
        few; the number of the last pass."""
        return [0, *add_new(builder, 0, range(begin, begin + count))][-1]
