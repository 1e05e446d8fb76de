"""The forward pass: what it is given, what its rows see, and how one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.contracts.unified.model import IMAGE, UnifiedModel, answer_part
from lockstep.harness.contracts.unified.system import UnifiedSubject
from lockstep.harness.core.fields import JOINT, MAX_LENGTH, MAX_POSITION, Schema, integer
from lockstep.reference.batch import Batch
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

ANY = integer(-MAX_POSITION, MAX_POSITION)
"""Any position, sequence or length: what is out of range is a usage error, not a fault of
the file."""


def list_of(items: Schema, longest: int = MAX_LENGTH) -> Schema:
    return {"type": "array", "maxItems": longest, "items": items}


def make_batch(op: Op) -> Batch:
    return Batch(op["positions"], op["sequences"], op["except"], op["multimodal"])


def count_tags(op: Op) -> int:
    """Of a pass: one for each row, and those of the last image."""
    return len(op["positions"]) + IMAGE * bool(op["multimodal"])


def list_places(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """(position, tag) of the rows of all passes that a program asks for."""
    places: list[tuple[int, int]] = []
    tag = 0
    for op in ops:
        if op["op"] == Forward.name:
            places += [(at, tag + row) for row, at in enumerate(op["positions"])]
            tag += count_tags(op)
    return [place for place in places if place[0] >= 0]


class Forward(Operation):
    name = "forward"
    fields: ClassVar[Mapping[str, Schema]] = {
        "positions": {**list_of(ANY), JOINT: True},
        "sequences": {**list_of(ANY), JOINT: True},
        "except": {**list_of(ANY), "default": []},
        "multimodal": {**list_of(ANY), "default": []},
        "reserve": {"type": "boolean", "default": False},
    }

    def tokens(self, op: Op) -> int:
        return count_tags(op)

    def illegal(self, op: Op, model: UnifiedModel) -> str | None:
        return None

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        batch = make_batch(op)
        tags = range(model.tag, model.tag + len(batch))
        answer = model.ask(
            lambda: model.cache.forward(batch, tags, op["reserve"]), self.name
        )
        if answer:
            return answer
        model.batch, model.reserved, model.tags = batch, op["reserve"], tags
        note_pass(op, model)
        if op["reserve"]:
            return {}
        if op["multimodal"]:
            image = range(tags.stop, tags.stop + IMAGE)
            for number, part in enumerate(model.parts):
                if isinstance(part, EncoderCache):
                    part.put(image)
                    model.fixed.add(number)
        model.written += len(tags)
        return answer_pass(model, batch) if model.rows else {}

    def observe(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> Answer:
        return subject.forward(op, model)

    def verify(self, op: Op, subject: UnifiedSubject, model: UnifiedModel) -> None:
        if model.batch is not None and not op["reserve"]:
            subject.verify_attention(model)

    def describe(self, op: Op) -> str:
        rows = zip(op["positions"], op["sequences"], strict=False)
        own: dict[int, list[int]] = {}
        for position, sequence in rows:
            own.setdefault(sequence, []).append(position)
        parts = [f"{say_positions(at)} of sequence {owner}" for owner, at in own.items()]
        text = "reserve for " if op["reserve"] else "forward with "
        text += " and ".join(parts) or "no rows"
        if len(op["positions"]) != len(op["sequences"]):
            text += (
                f" ({len(op['positions'])} positions, {len(op['sequences'])} sequences)"
            )
        if op["except"]:
            text += f", rows {op['except']} not causal"
        if op["multimodal"]:
            text += f", image in rows {op['multimodal']}"
        return text

    def describe_row(self, op: Op, row: int) -> str:
        return (
            f"row {row} (sequence {op['sequences'][row]},"
            f" position {op['positions'][row]})"
        )

    # --- drawing ------------------------------------------------------------------------

    def draw(self, source: Source, model: UnifiedModel) -> Op | None:
        rows = draw_rows(source, model)
        if not rows:
            return None
        op: dict[str, Any] = {
            "op": self.name,
            "positions": [position for position, _ in rows],
            "sequences": [sequence for _, sequence in rows],
        }
        if source.below(5) == 4:
            op["except"] = draw_some_rows(source, len(rows))
        if "encoder" in model.kinds and source.below(2):
            op["multimodal"] = draw_some_rows(source, len(rows))
        if source.below(12) == 11:
            op["reserve"] = True
        return op


def answer_pass(model: UnifiedModel, batch: Batch) -> Answer:
    """What the open pass shows."""
    answers = [answer_part(part, batch) for part in model.parts]
    if model.config["kind"] == "wrapper":
        return {"caches": answers}
    return answers[0]


def note_pass(op: Op, model: UnifiedModel) -> None:
    model.past, model.moved = set(), None
    if op["except"]:
        model.past.add("after-exception")
    if op["reserve"]:
        model.past.add("after-reserve")


def say_positions(positions: Sequence[int]) -> str:
    first, last = positions[0], positions[-1]
    if len(positions) > 1 and list(positions) == list(range(first, last + 1)):
        return f"positions {first}-{last}"
    word = "position" if len(positions) == 1 else "positions"
    return f"{word} {', '.join(map(str, positions))}"


FARTHEST = MAX_POSITION - 4096
"""No position is drawn behind this, so that programs can go on from it."""

Row = tuple[int, int]
"""(position, sequence)"""


def draw_rows(source: Source, model: UnifiedModel) -> list[Row]:
    """The rows of a batch, mostly as an engine would send them: the next tokens of some
    sequences, one or several of each."""
    count = model.config["sequences"]
    most = min(model.config["batch"], draw_size(source, model))
    has_states = any(isinstance(part, RecurrentCache) for part in model.parts)
    if source.below(3) or count == 1:
        chosen = [source.below(count)]
    else:
        start = source.below(count)
        width = source.between(2, count)
        chosen = [(start + step) % count for step in range(width)][:most]
    lengths = [most // len(chosen)] * len(chosen)
    if not (has_states and source.below(8)):
        lengths[0] += most - sum(lengths)
        if len(chosen) > 1 and lengths[1] > 1 and source.below(2):
            lengths[0], lengths[1] = lengths[0] + 1, lengths[1] - 1
    rows = [
        (position, sequence)
        for sequence, length in zip(chosen, lengths, strict=True)
        for position in draw_positions(source, model, sequence, length)
    ]
    if len(chosen) > 1 and source.below(3) == 2:
        rows = [row for place in range(3) for row in rows[place::3]]
    return rows


def draw_size(source: Source, model: UnifiedModel) -> int:
    """How many rows: one, a few, all that are allowed, or just what fits, or one more."""
    batch: int = model.config["batch"]
    room = model.get_room()
    sizes = [
        1,
        batch,
        1,
        2,
        3,
        1,
        max(1, batch - 1),
        room,
        room + 1,
        source.between(1, 8),
    ]
    return max(1, source.pick(sizes))


def draw_positions(
    source: Source, model: UnifiedModel, sequence: int, length: int
) -> list[int]:
    """Positions that follow what is stored; now and then a step back, a gap, the same
    again."""
    begin = model.get_end(sequence)
    if source.below(8) == 7:
        steps = [-1, 1, -2, 2, -3, 5, -begin, 300, 40_000]
        begin = min(max(0, begin + source.pick(steps)), FARTHEST)
    positions = list(range(begin, begin + length))
    if length > 1 and source.below(16) == 15:
        positions.reverse()
    return positions


def draw_some_rows(source: Source, rows: int) -> list[int]:
    """At least one row, mostly neighbours, in order."""
    begin = source.below(rows)
    chosen = list(range(begin, begin + 1 + source.below(min(4, rows - begin))))
    if len(chosen) > 2 and source.below(2):
        del chosen[1]
    return chosen
