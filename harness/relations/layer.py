"""The relations of layer caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.contracts.base import Answer, Op
from harness.contracts.fields import MAX_LENGTH
from harness.contracts.layer.operation import MAX_CACHES
from harness.contracts.layer.simpler import FIELDS, get_fields, rename_in
from harness.relations.derived import Builder, Derived, History, Step, see_rows
from harness.relations.layer_book import Held, LayerBook, get_changes, get_needs
from harness.relations.relation import Relation


def read_books(history: History) -> Iterator[tuple[Step, LayerBook]]:
    """Each step, with what was left before it."""
    book = LayerBook(history.program.kind)
    for step in history.steps:
        yield step, book
        book.write(step)


def read_until(history: History, number: int) -> LayerBook:
    """What was left before the step with this number."""
    book = LayerBook(history.program.kind)
    for step in history.steps:
        if step.number == number:
            break
        book.write(step)
    return book


def take_rest(builder: Builder, history: History, number: int) -> None:
    """All steps from one on, which must answer the same."""
    for step in history.steps:
        if step.number >= number:
            builder.take(step)


def add_update(builder: Builder, cache: str, tags: Sequence[int]) -> int:
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)


class Recompute(Relation):
    """Whatever happened, the caches and snapshots go on as those that were made from the
    tokens that are left: each cache in one update of a fresh one."""

    name = "recompute"

    def list_choices(self, history: History) -> Sequence[int]:
        return [
            step.number
            for step, book in read_books(history)
            if step.number and not book.is_scheduled()
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        book, builder = read_until(history, choice), Builder(history)
        names = iter(f"r{number}" for number in range(MAX_CACHES))
        if len(book.caches) + len(book.snapshots) > MAX_CACHES - 3:
            return None
        for name, put in book.snapshots.items():
            if not 0 < put.end == len(put.tokens) <= MAX_LENGTH:
                return None
            scratch = next(names)
            add_update(builder, scratch, put.tokens)
            builder.add(
                {"op": "snapshot", "from": put.begin, "into": name, "cache": scratch}
            )
        for name, held in book.caches.items():
            if len(held.tokens) > MAX_LENGTH:
                return None
            if held.tokens:
                add_update(builder, name, held.tokens)
        take_rest(builder, history, choice)
        return builder.build("in fresh caches that get the tokens that are left")


class Cut(Relation):
    """To the last token it is all the same in how many updates they came."""

    name = "cut"

    def list_choices(self, history: History) -> Sequence[Any]:
        choices: list[Any] = []
        before: Step | None = None
        for step in history.steps:
            length = step.op.get("length", 0)
            if step.name == "update" and length > 1:
                cuts = sorted({1, length // 2, length - 1})
                choices += [(step.number, at) for at in cuts]
            if before and is_joint(before, step):
                choices.append((step.number, 0))
            before = step
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, at = choice
        builder = Builder(history)
        for step, following in zip(
            history.steps, [*history.steps[1:], None], strict=True
        ):
            if at and step.number == number:
                self.split(builder, step, at)
            elif not at and following and following.number == number:
                self.join(builder, step, following)
            elif at or step.number != number:
                builder.take(step)
        return builder.build("with one update cut in two" if at else "with two joined")

    def split(self, builder: Builder, step: Step, at: int) -> None:
        cache, rows = step.op["cache"], step.answer["visible"]
        first = add_update(builder, cache, step.tags[:at])
        second = add_update(builder, cache, step.tags[at:])
        builder.claim(step, first, {"visible": rows[:at]})
        rest = {**step.answer, "visible": rows[at:]}
        builder.claim(step, second, rest, rows=range(at, len(rows)))

    def join(self, builder: Builder, first: Step, second: Step) -> None:
        tags = [*first.tags, *second.tags]
        other = add_update(builder, first.op["cache"], tags)
        rows, more = first.answer["visible"], second.answer["visible"]
        builder.claim(first, other, {"visible": rows}, see_rows(0, len(rows)))
        after = see_rows(len(rows), len(more))
        builder.claim(second, other, second.answer, after)


def is_joint(first: Step, second: Step) -> bool:
    return (
        first.name == second.name == "update"
        and first.op["cache"] == second.op["cache"]
        and first.op["length"] + second.op["length"] <= MAX_LENGTH
    )


class Alone(Relation):
    """What an operation does not concern answers the same without it: a fork goes its own
    way, and reading changes nothing."""

    name = "alone"

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step in history.steps[:-1]]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        missing: set[tuple[str, str]] = set()
        left_out = 0
        for step in history.steps:
            needs, changes = get_needs(step.op), get_changes(step.op)
            if step.number == choice or needs & missing:
                missing |= changes
                left_out += 1
            else:
                missing -= changes
                if step.number < choice:
                    builder.add(step.op, step.tags)
                else:
                    builder.take(step)
        what = "one operation" if left_out == 1 else f"{left_out} operations"
        return builder.build(f"without {what} on something else")


class Swap(Relation):
    """Two neighbours that do not concern each other may come in either order."""

    name = "swap"

    def list_choices(self, history: History) -> Sequence[int]:
        pairs = zip(history.steps, history.steps[1:], strict=False)
        return [second.number for first, second in pairs if is_free(first.op, second.op)]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        places = [step.number for step in history.steps]
        at = places.index(choice)
        order = [*range(at - 1), at, at - 1, *range(at + 1, len(places))]
        for place in order:
            builder.take(history.steps[place])
        return builder.build("with two operations in the other order")


def is_free(first: Op, second: Op) -> bool:
    """Neither changes what the other needs or changes."""
    one, two = get_changes(first), get_changes(second)
    return not (one & (get_needs(second) | two)) and not (two & get_needs(first))


class Rename(Relation):
    """Names are names."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        names = {step.op["cache"] for step in history.steps}
        snapshots = any(get_fields(step.op, "snapshot") for step in history.steps)
        return [0] if len(names) > 1 or snapshots else []

    def derive(self, history: History, choice: int) -> Derived | None:
        names: dict[str, dict[str, str]] = {"cache": {}, "snapshot": {}}
        for step in history.steps:
            for what in FIELDS:
                for field in get_fields(step.op, what):
                    value = step.op[field]
                    for name in value if isinstance(value, list) else [value]:
                        names[what].setdefault(name, "")
        for known in names.values():
            others = sorted(known)
            known |= dict(zip(others, [*others[1:], *others[:1]], strict=True))
        builder = Builder(history)
        for step in history.steps:
            op = rename_in(rename_in(step.op, names["snapshot"]), names["cache"], "cache")
            builder.take(step, **op)
        return builder.build("with the names exchanged")


class Return(Relation):
    """To come back is never to have left: after a detour of a cache, and a restore, all
    is as if nothing had been."""

    name = "return"

    def list_choices(self, history: History) -> Sequence[Any]:
        choices: list[Any] = []
        for step, book in read_books(history):
            held = book.get(step.op["cache"])
            if held.tokens and held.due is None:
                ways = ["snapshot", "late", "freed", "fork", "exchange"]
                if history.program.kind == "kv" and len(held.tokens) > 1:
                    ways += ["split", "merged", "captured"]
                if self.may_trim(history, held):
                    ways += ["trim", "rewind"]
                elif history.program.kind != "kv":
                    ways.append("refused")
                choices += [(step.number, way) for way in ways]
        return choices

    def may_trim(self, history: History, held: Held) -> bool:
        """Nothing has slid out, nor was folded into a state."""
        window = history.program.config["window"]
        return history.program.kind == "kv" or (
            window is not None and len(held.tokens) <= window
        )

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        book, builder = read_until(history, number), Builder(history)
        for step in history.steps:
            if step.number == number:
                cache = step.op["cache"]
                self.detour(builder, step, way, cache, book.get(cache).tokens)
            if step.number < number:
                builder.add(step.op, step.tags)
            else:
                builder.take(step)
        return builder.build(f"after a detour ({WAYS[way]})")

    def detour(
        self, builder: Builder, step: Step, way: str, cache: str, tokens: Sequence[int]
    ) -> None:
        length, own = len(tokens), {"cache": cache}
        if way == "captured":
            self.capture(builder, step, tokens, own)
        elif way == "refused":
            other = builder.add({"op": "trim", "count": 1, **own})
            builder.promise(step, other, {"trimmed": 0, "offset": length})
            back = {"op": "restore", "snapshot": None, "target": length - 1, **own}
            other = builder.add(back)
            builder.promise(step, other, {"ok": False, "offset": length})
        elif way in ("fork", "exchange"):
            builder.add({"op": "clone", "into": "r0", **own})
            away = {"cache": "r0"} if way == "fork" else own
            self.wander(builder, away)
            if way == "exchange":
                builder.add({"op": "clone", "into": cache, "cache": "r0"})
            builder.add({"op": "free", "cache": "r0"})
        elif way in ("trim", "rewind"):
            less = (length + 1) // 2
            answer: Answer = {"offset": length - less}
            if way == "trim":
                other = builder.add({"op": "trim", "count": less, **own})
                answer["trimmed"] = less
            else:
                target = length - less
                op = {"op": "restore", "snapshot": None, "target": target, **own}
                other = builder.add(op)
                answer["ok"] = True
            builder.promise(step, other, answer)
            add_update(builder, cache, tokens[length - less :])
        else:
            self.leave(builder, way, length, own)
            back = {"op": "restore", "snapshot": "r0", "target": length, **own}
            other = builder.add(back)
            builder.promise(step, other, {"ok": True, "offset": length})
            builder.add({"op": "close", "snapshot": "r0", **own})

    def capture(
        self, builder: Builder, step: Step, tokens: Sequence[int], own: Op
    ) -> None:
        """What was captured stays as it was, though other tokens come by."""
        length, first = len(tokens), tokens[0]
        builder.add({"op": "prepare", "offsets": [length + 1], **own})
        builder.add({"op": "update", "length": 1, **own}, [first])
        builder.add({"op": "trim", "count": 1, **own})
        builder.add({"op": "update", "length": 2, **own})
        taken = builder.add({"op": "take", "into": ["r0"], **own})
        builder.promise(step, taken, {"ranges": [[length, length + 1]]})
        builder.add({"op": "restore", "snapshot": "r0", "target": length + 1, **own})
        held = builder.add({"op": "state", **own})
        builder.promise(step, held, {"tags": [*tokens, first]})
        builder.add({"op": "trim", "count": 1, **own})
        builder.add({"op": "close", "snapshot": "r0", **own})

    def leave(self, builder: Builder, way: str, length: int, own: Op) -> None:
        """Leaves behind a snapshot r0 that brings the cache back."""
        middle = length // 2
        begin = middle if way == "late" else 0
        builder.add({"op": "snapshot", "from": begin, "into": "r0", **own})
        if way in ("split", "merged"):
            sides = {"parent": "r1", "child": "r0"}
            builder.add({"op": "split", "snapshot": "r0", "at": middle, **sides, **own})
        if way == "merged":
            builder.add({"op": "merge", **sides, "into": "r0", **own})
        if way == "split":
            builder.add({"op": "close", "snapshot": "r1", **own})
        if way == "freed":
            builder.add({"op": "free", **own})
        if way not in ("late", "split"):  # these bring back the later half
            self.wander(builder, own)
        builder.add({"op": "update", "length": 2, **own})

    def wander(self, builder: Builder, own: Op) -> None:
        for op in (
            {"op": "update", "length": 1},
            {"op": "trim", "count": 2},
            {"op": "update", "length": 3},
        ):
            builder.add({**op, **own})


WAYS = {
    "snapshot": "snapshot, other tokens, restore",
    "late": "snapshot of the later half, other tokens, restore",
    "split": "snapshot, its later half split off, other tokens, restore of that",
    "merged": "snapshot, split and merged, other tokens, restore",
    "freed": "snapshot, free, other tokens, restore",
    "fork": "a clone goes elsewhere",
    "exchange": "the cache goes elsewhere, and its clone takes its place",
    "captured": "a capture, other tokens, restore of what was captured",
    "refused": "what has slid out, or was read, cannot be taken back",
    "trim": "trim, the same tokens again",
    "rewind": "restore an earlier offset, the same tokens again",
}


class Mask(Relation):
    """A window or a chunk is a mask over full attention; a state has read what full
    attention sees, and full attention sees what a state has read."""

    name = "mask"

    def list_choices(self, history: History) -> Sequence[int]:
        seen = ("update", "state", "view", "size")
        return [step.number for step in history.steps if step.name in seen]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = next(step for step in history.steps if step.number == choice)
        tokens = list(read_until(history, choice).get(step.op["cache"]).tokens)
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
    """What a query sees of the tokens up to itself, the last of the row."""
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


class Edge(Relation):
    """A window may be taken back while nothing has slid out of it, and no longer; and a
    write that goes past two scheduled offsets captures both."""

    name = "edge"

    def is_about(self, kind: str) -> bool:
        return kind != "state"

    def list_choices(self, history: History) -> Sequence[int]:
        own = [step.number for step in history.steps if step.name == "update"]
        return own[:1] if self.is_about(history.program.kind) else []

    def derive(self, history: History, choice: int) -> Derived | None:
        step = next(step for step in history.steps if step.number == choice)
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


RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Alone(),
    Swap(),
    Rename(),
    Return(),
    Mask(),
    Edge(),
)
