"""Defines the base class of unified operations, and the forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.driver import messages
from lockstep.harness.contracts import answer_schemas as schemas
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Op,
    Operation,
    Source,
    get_first_allowed,
    list_allowed,
)
from lockstep.harness.contracts.rewrites import replace_at
from lockstep.harness.contracts.unified.model import (
    Place,
    UnifiedModel,
    count_pass_tags,
    get_batch,
)
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.document import (
    JOINT,
    MAX_LENGTH,
    MAX_POSITION,
    NAMES,
    Schema,
    integer,
)
from lockstep.reference.recurrent import RecurrentCache

REFUSAL = schemas.error("usage", "cache-full", "not-supported", "shared")
NOTHING_OR_REFUSAL = schemas.any_of(schemas.NOTHING, REFUSAL)
ROWS = schemas.record(visible=schemas.PAIR_ROWS)
STATES = schemas.extend(ROWS, states=schemas.TAG_ROWS)
IMAGE_STORED = schemas.record(
    cached=schemas.BOOLEAN, stored={**schemas.TAGS, "type": ["array", "null"]}
)
PASSES: Mapping[str, Schema] = {
    "encoder": IMAGE_STORED,
    "recurrent": STATES,
    "wrapper": schemas.record(caches=schemas.list_of(ROWS, STATES, IMAGE_STORED)),
}
"""Kind → the answer of its passes, for kinds whose rows see more than tokens."""

ANY = integer(-MAX_POSITION, MAX_POSITION)
"""Any position or length. A program file may contain a value out of range; the call is
then invalid."""

SEQUENCE: Schema = {**ANY, NAMES: "sequence"}


Side = UnifiedModel | UnifiedSystem
"""The cache of a program: the reference's or a backend's."""


class UnifiedOperation(Operation):
    """An operation on the single cache of a program.

    By default, calls the method with the operation's name, with the fields as arguments.

    Attributes:
        changes: whether the operation changes the cache; such an operation ends the open
            pass.
    """

    changes: ClassVar[bool] = False

    def run(self, op: Op, side: Side) -> Answer:
        call, fields = getattr(side.cache, self.name), [op[name] for name in self.fields]
        return side.ask(lambda: call(*fields))

    def run_reference(self, op: Op, model: UnifiedModel) -> Answer:
        return model.follow(lambda content: self.run_on_content(op, content))

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        """Runs `op` on one model, and returns the answer. After a refused pass, there is
        a model for each content that the cache may have."""
        answer = self.run(op, model)
        if self.changes:
            model.close(answer.get("error"))
        return answer

    def follows(self, expected: Answer) -> bool:
        """Tells whether the expected answer lets the backend choose."""
        return get_first_allowed(expected) is not expected

    def resolve(self, op: Op, model: UnifiedModel, observed: Answer) -> None:
        model.settle(observed)


# --- the forward pass -------------------------------------------------------------------


MOST_OTHERS = 16
"""With this number of alternative contents of a wrapper, passes are illegal."""

NUMBERS: Schema = {"type": "array", "maxItems": MAX_LENGTH, "items": ANY}


PAIR: Schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": ANY}

LISTS = ("positions", "sequences", "exceptions", "multimodal")
ROW_LISTS = dict.fromkeys(LISTS, list[int])


class Forward(UnifiedOperation):
    """Announces a pass with these rows; then puts and gets K and V in each layer of each
    cache. With `reserve`, the content of the cache does not change. `coordinates` are
    the [y, x] of each row; t is its position. Without them, all rows are text: y = x = t.

    Answer: `visible`: for each row, the sorted list of the [position, tag] that the row
    sees; `{}` if `reserve` is set; or `error`.
    """

    name, weight = "forward", 16
    effect = Effect.ADDS
    messages = {"forward": ({**ROW_LISTS, "reserve": bool, **messages.PAIRS}, {})}
    writes = has_misuse = True
    fields: ClassVar[Mapping[str, Schema]] = {
        "positions": {**NUMBERS, JOINT: True},
        "sequences": {**NUMBERS, JOINT: True, NAMES: "sequence"},
        "except": {**NUMBERS, "default": []},
        "multimodal": {**NUMBERS, "default": []},
        "reserve": {"type": "boolean", "default": False},
        "coordinates": {**NUMBERS, "items": PAIR, "default": []},
    }

    def count_tags(self, op: Op) -> int:
        return count_pass_tags(op)

    def why_illegal(self, op: Op, model: UnifiedModel) -> str | None:
        if op["coordinates"] and not model.config["sections"]:
            return "coordinates need sections in the config"
        full = len(model.others) >= MOST_OTHERS
        return "too many passes were refused without a change" if full else None

    def get_answer(self, kind: str) -> Schema:
        return schemas.any_of(PASSES.get(kind, ROWS), schemas.NOTHING, REFUSAL)

    def run_on_content(self, op: Op, model: UnifiedModel) -> Answer:
        answer = model.forward(op)
        refused = list_allowed(answer)[0].get("error", "usage") != "usage"
        if refused and model.config["kind"] == "wrapper" and not op["reserve"]:
            model.spread(get_batch(op))
        return answer

    def run_backend(self, op: Op, system: UnifiedSystem, model: UnifiedModel) -> Answer:
        return system.forward(op, model)

    def verify(self, op: Op, system: UnifiedSystem, model: UnifiedModel) -> None:
        if model.batch is not None and not op["reserve"]:
            system.verify_attention(model)

    def describe(self, op: Op) -> str:
        rows = zip(op["positions"], op["sequences"], strict=False)
        positions_of: dict[int, list[int]] = {}
        for position, sequence in rows:
            positions_of.setdefault(sequence, []).append(position)
        phrases = [
            f"{format_positions(at)} of sequence {owner}"
            for owner, at in positions_of.items()
        ]
        text = "reserve for " if op["reserve"] else "forward with "
        text += " and ".join(phrases) or "no rows"
        if len(op["positions"]) != len(op["sequences"]):
            text += (
                f" ({len(op['positions'])} positions, {len(op['sequences'])} sequences)"
            )
        if op["except"]:
            text += f", rows {op['except']} not causal"
        if op["multimodal"]:
            text += f", image in rows {op['multimodal']}"
        if op["coordinates"]:
            text += f", y and x {', '.join(map(str, op['coordinates']))}"
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
            "positions": [place[0] for place, _ in rows],
            "sequences": [sequence for _, sequence in rows],
        }
        if any(len({*place}) > 1 for place, _ in rows):
            op["coordinates"] = [[y, x] for (_, y, x), _ in rows]
        rare = source.below(60)
        if rare % 5 == 4:
            op["except"] = draw_some_rows(source, len(rows))
        if "encoder" in model.kinds and source.below(2):
            op["multimodal"] = draw_some_rows(source, len(rows))
        if rare >= 55:
            op["reserve"] = True
        return op

    def draw_misuse(self, source: Source, model: UnifiedModel) -> Op | None:
        op = self.draw(source, model)
        if op is None:
            return None
        positions, sequences = list(op["positions"]), list(op["sequences"])
        rows, count = len(positions), model.config["sequences"]
        row = source.below(rows)
        full = model.config["batch"] + 1
        wrong: Sequence[Mapping[str, Any]] = (
            {"positions": [*positions, 0]},
            {"sequences": sequences[:-1]},
            {"positions": replace_at(positions, row, -1 - source.below(3))},
            {"positions": [], "sequences": [], "except": [], "multimodal": []},
            {"positions": [*range(full + source.below(3))], "sequences": [0] * full},
            {"positions": [*range(full)], "sequences": [0] * full},
            {"sequences": replace_at(sequences, row, count + source.below(2))},
            {"sequences": replace_at(sequences, row, -1)},
            {"except": [rows + source.below(2)]},
            {"except": [-1]},
            {"multimodal": [rows]},
            {"coordinates": [[0, 0]] * (rows + 1)},
            {"coordinates": [[0, -1]] * rows},
        )
        wrong = wrong if model.config["sections"] else wrong[:-2]
        return {**op, **source.pick(wrong)}


def format_positions(positions: Sequence[int]) -> str:
    first, last = positions[0], positions[-1]
    if len(positions) > 1 and list(positions) == list(range(first, last + 1)):
        return f"positions {first}-{last}"
    word = "position" if len(positions) == 1 else "positions"
    return f"{word} {', '.join(map(str, positions))}"


FARTHEST = MAX_POSITION - 4096
"""No position above this is drawn, so that programs can continue after it."""

Row = tuple[Place, int]
"""(place, sequence)"""


def draw_rows(source: Source, model: UnifiedModel) -> list[Row]:
    """Draws the rows of a batch: (place, sequence), where a place is (t, y, x).

    Most batches are typical of engines: they have the next token, or several next tokens,
    of some sequences.
    """
    count = model.config["sequences"]
    most = min(model.config["batch"], draw_size(source, model))
    has_states = any(isinstance(cache, RecurrentCache) for cache in model.parts)
    if source.below(3) or count == 1:
        chosen = [source.below(count)]
    else:
        start = source.below(count)
        width = source.between(2, count)
        chosen = [(start + step) % count for step in range(width)][:most]
    if model.copied is not None and not source.below(3):
        # Positions after the source's tokens, as if all these tokens were copied.
        begin = max(map(model.get_end, range(count)))
        return [(at, model.copied) for at in list_text(begin, min(most, 4))]
    shared = model.list_shared_states()
    if len(shared) > 1 and source.below(4):
        batch: int = model.config["batch"]
        chosen = [source.pick(together) for together in shared][:batch]
        most = len(chosen)
    lengths = [most // len(chosen)] * len(chosen)
    if not (has_states and source.below(8)):
        lengths[0] += most - sum(lengths)
        if len(chosen) > 1 and lengths[1] > 1 and source.below(2):
            lengths[0], lengths[1] = lengths[0] + 1, lengths[1] - 1
    rows = [
        (place, sequence)
        for sequence, length in zip(chosen, lengths, strict=True)
        for place in draw_places(source, model, sequence, length)
    ]
    if len(chosen) > 1 and source.below(3) == 2:
        rows = [row for offset in range(3) for row in rows[offset::3]]
    return rows


def draw_size(source: Source, model: UnifiedModel) -> int:
    """Draws a number of rows: 1, a few, a full batch, as many as free cells, or
    1 more."""
    batch: int = model.config["batch"]
    room = model.get_room()
    sizes = [1, batch, 1, 2, 3, 1, max(1, batch - 1), room, room + 1, None]
    size = source.pick(sizes)
    return source.between(1, 8) if size is None else max(1, size)


def draw_places(
    source: Source, model: UnifiedModel, sequence: int, length: int
) -> list[Place]:
    """Draws the coordinates (t, y, x) of the next tokens of a sequence.

    Some draws go back, leave a gap or repeat a position. With `sections`, every second
    draw has rows of an image.
    """
    begin = model.get_end(sequence)
    if source.below(8) == 7:
        steps = [-1, 1, -2, 2, -3, 5, -begin, 300, 40_000]
        begin = min(max(0, begin + source.pick(steps)), FARTHEST)
    places = list_text(begin, length)
    if model.config["sections"] and source.below(2):
        places = draw_image(source, model.list_places(sequence)[-1:], begin, length)
    if length > 1 and source.below(12) == 11:
        places.reverse()
    return places


def list_text(begin: int, length: int) -> list[Place]:
    """Lists the coordinates of text, which are equal: t = y = x."""
    return [(at, at, at) for at in range(begin, begin + length)]


def draw_image(
    source: Source, last: Sequence[Place], begin: int, length: int
) -> list[Place]:
    """Draws the coordinates of text, an image and text; or continues an image.

    The text after an image begins after the largest coordinate.

    Args:
        source: makes the choices.
        last: the last place of the sequence, if it has tokens; an image may continue in
            the next line after it.
        begin: the first position of new text.
        length: number of places.
    """
    text, line = list_text(begin, source.below(min(3, length))), 0
    at = begin + len(text)
    if last and not source.below(3):
        [(at, y, _)], text = last, []
        line = y - at + 1
    width, count = source.between(1, 3), source.between(1, length - len(text))
    image = [(at, at + line + i // width, at + i % width) for i in range(count)]
    after = max(map(max, image)) + 1
    return [*text, *image, *list_text(after, length - len(text) - count)]


def draw_some_rows(source: Source, rows: int) -> list[int]:
    """Draws at least one row number; mostly adjacent rows, in ascending order."""
    begin = source.below(rows)
    chosen = list(range(begin, begin + 1 + source.below(min(4, rows - begin))))
    if len(chosen) > 2 and source.below(2):
        del chosen[1]
    return chosen
