"""Defines the operations that open a batch, write and remove tokens, and pad rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.driver.messages import PAIR, PART
from lockstep.harness.contracts.answer_schemas import (
    BOOLEAN,
    NUMBER,
    OFFSETS,
    TAG_ROWS,
    USAGE,
    any_of,
    list_of,
    record,
)
from lockstep.harness.contracts.batched.base import (
    BATCHES,
    CACHE,
    COUNTS,
    ROW,
    ROWS_OFFSETS,
    SLICED,
    BatchedOperation,
    OnEither,
    draw_length,
)
from lockstep.harness.contracts.batched.model import (
    MOST_ROWS,
    BatchedModel,
    answer_row,
    list_parts,
)
from lockstep.harness.contracts.batched.system import BatchedSystem, Written
from lockstep.harness.contracts.layer.operations import FORMS, count
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Fields,
    Op,
    Source,
    ask,
    choose,
)
from lockstep.harness.core.document import INTEGER, LENGTH
from lockstep.reference.batched import BatchedCache
from lockstep.reference.rotating import RotatingCache

WRONG = tuple(form for form in FORMS if form != "length")
"""The properties of arrays that can be wrong in an update of a batch."""

PLACE = {"position": NUMBER, "offset": NUMBER}
UPDATED_ROWS = list_of(
    record(visible=TAG_ROWS),
    *(record(visible=TAG_ROWS, **{name: NUMBER}) for name in PLACE),
    record(visible=TAG_ROWS, **PLACE),
)


class Open(BatchedOperation):
    """Opens a batch of `rows` empty rows; `rows` must be at least 1.

    Answer: `offsets`.
    """

    name, weight = "open", 2
    effect = Effect.REMOVES
    answer = ROWS_OFFSETS
    is_method = False
    fields = {"rows": ROW, **CACHE}

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        return None

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        name = source.pick(BATCHES)
        if name in model.batches and source.below(8):
            return None
        return {"op": self.name, "rows": source.pick((2, 1, 3, 4, 2, 3)), "cache": name}

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op:
        return {"op": self.name, "rows": 0, "cache": source.pick(BATCHES)}

    def describe_here(self, op: Op) -> str:
        return f"open a batch of {count(op['rows'], 'row')}"

    def run(self, op: Op, side: Any) -> Answer:
        name, rows = op["cache"], op["rows"]
        answer: Answer = side.ask_for(name, lambda: side.open_batch(name, rows=rows))
        return answer


class Update(OnEither):
    """Appends `length` columns to each row, or `length` tokens to a single cache. In row
    b, the first `left[b]` columns are padding (null: no padding). Left padding is allowed
    only in an empty batch, and at least one row must have none. After `pad_right`, the
    columns after the announced tokens of a row are padding. If `wrong` is set, passes
    arrays with this property wrong, which the batch or the single cache must refuse, as
    in the layer contract; a batch takes no "length" or "capture".

    Answer: `caches`: for each row, `position` of the first new token, if there is any;
    `offset` after the update, unless padding is announced; and `visible`: the tags that
    each new token sees. For a single cache, the answer of the layer contract.
    """

    name, weight = "update", 24
    effect = Effect.ADDS
    messages = {"update": ({**PAIR, **PART}, PAIR)}
    answer = any_of(record(caches=UPDATED_ROWS), USAGE)
    writes = True
    is_method = False
    fields = {
        "length": LENGTH,
        "left": {**COUNTS, "type": ["array", "null"], "default": None},
        **CACHE,
        "wrong": {"enum": [None, *FORMS, "capture"], "default": None},
    }

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        if op["left"] is not None and not model.config["pads_left"]:
            return "the cache takes no padding on the left"
        if max(op["left"] or [0]) >= op["length"]:
            return "a row gets padding only"
        if op.get("wrong") is None:
            return None
        if op["wrong"] not in WRONG or op["left"] is not None:
            return f"a batch takes no {op['wrong']}"
        if not all(model.batches[op["cache"]].offsets):
            return "an empty row takes arrays of any form"
        is_only = op["wrong"] == "dtype" and model.config["dtype"] == "float32"
        return "there may be no other dtype" if is_only else None

    def count_tags(self, op: Op) -> int:
        """Counts `MOST_ROWS` tags for each column, so that tags do not depend on the
        number of rows."""
        return int(op["length"]) * MOST_ROWS

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        announced = model.batches.keys() - model.list_settled()
        if announced and source.below(4):
            return self.draw_for(source, model, source.pick(sorted(announced)))
        return super().draw(source, model)

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        batch = model.batches[name]
        if batch.coming is not None:
            most = batch.announced
            lengths = (most, 1, source.between(1, max(1, most)))
            return {"length": source.pick(lengths)} if most else None
        if max(batch.offsets) >= model.reach:
            return None if source.below(4) else {"length": 1}
        may_pad = model.config["pads_left"] and len(batch.rows) > 1
        if not batch.width and may_pad and source.below(3):
            return draw_left(source, model, batch)
        if source.below(2):
            return {"length": 1}
        return {"length": draw_length(source, model, batch)}

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op | None:
        if not model.batches:
            return None
        empty = [name for name, named in model.batches.items() if not any(named.offsets)]
        name = source.pick(empty or list(model.batches))
        batch, rows = model.batches[name], len(model.batches[name].rows)
        wrong: list[Any] = [(2, [1] * rows), (1, [0] * (rows + 1)), (1, [0] * (rows - 1))]
        if any(batch.offsets):
            wrong.append((2, [0] * rows))
        if batch.coming is not None:
            wrong = [(batch.announced + 1, None), (1, [0] * rows)]
        if all(batch.offsets) and source.below(2):
            form = {"length": source.between(1, 2), "wrong": source.pick(WRONG)}
            return {"op": self.name, **form, "cache": name}
        length, padded = source.pick(wrong)
        padded = padded if padded is None else padded[:MOST_ROWS]
        return {"op": self.name, "length": length, "left": padded, "cache": name}

    def run_reference_batch(self, op: Op, model: BatchedModel) -> Answer:
        name, length, padded = op["cache"], op["length"], op["left"]
        batch = model.batches[name]
        model.written = []
        answer = ask(lambda: batch.count_tokens(length, padded))
        if op.get("wrong"):
            answer = {"error": "usage"}
        if "error" in answer:
            return answer
        model.written = get_row_tags(model.tag, length, answer["result"], padded)
        batch.update(length, model.written)
        model.past[name] = {"padded-left"} if padded else set()
        return model.tell(lambda member: self.answer_rows(member, name))

    def answer_rows(self, model: BatchedModel, name: str) -> Answer:
        """Returns the answer: the position, offset and visible tags of each row."""
        batch, tells = model.batches[name], model.config["offsets"] == "rows"
        rows = []
        for row, tags in zip(batch.rows, model.written, strict=True):
            answer: Answer = {}
            if tells and tags:
                answer["position"] = row.offset - len(tags)
            if tells and batch.coming is None:
                answer["offset"] = row.offset
            if model.rows:
                answer["visible"] = answer_row(row, len(tags))
            rows.append(answer)
        return {"caches": rows}

    def run_backend_batch(
        self, op: Op, system: BatchedSystem, model: BatchedModel
    ) -> Answer:
        name, length, padded = op["cache"], op["length"], op["left"]
        rows = model.batches[name].rows
        if not model.written:

            def update_wrongly() -> None:
                if padded is not None:
                    system.pad_left(name, padded)
                system.parts[0].write_wrongly(name, len(rows), length, op.get("wrong"))

            return system.ask(update_wrongly)
        if padded is not None and any(padded):
            system.pad_left(name, padded)
        written = get_written(op, model)
        return system.ask_parts(lambda part, rows: part.write(name, written, rows), rows)

    def verify(self, op: Op, system: BatchedSystem, model: BatchedModel) -> None:
        super().verify(op, system, model)
        if op["cache"] in model.batches and model.written:
            rows, written = model.batches[op["cache"]].rows, get_written(op, model)
            system.visit_parts(
                lambda part, rows: part.verify_attention(written, rows), rows
            )

    def describe_here(self, op: Op) -> str:
        padded = op.get("left")
        padding = f", padding of {padded} on the left" if padded else ""
        wrong = f" of another {op['wrong']}" if op.get("wrong") else ""
        return f"update with {count(op['length'], 'column')}{wrong}{padding}"


def get_written(op: Op, model: BatchedModel) -> Written:
    begins = list(op["left"] or [0] * len(model.written))
    return Written(op["length"], begins, model.written)


def draw_left(source: Source, model: BatchedModel, batch: BatchedCache) -> Fields:
    """Draws a first update with padding on the left; at least one row has no padding."""
    length = draw_length(source, model, batch) + source.below(3)
    padded = [source.pick((0, length - 1, source.below(length))) for _ in batch.rows]
    padded[source.below(len(padded))] = 0
    return {"length": length, "left": padded}


def get_row_tags(
    first: int, length: int, counts: Sequence[int], padded: Sequence[int] | None
) -> list[range]:
    """Returns the tags of each row's tokens; the tags of padding columns are skipped.

    Args:
        first: the tag of the first column of the first row.
        length: the number of columns of the update.
        counts: the number of tokens of each row.
        padded: the number of padding columns before the tokens of each row; None for no
            padding.
    """
    begins = [
        first + row * length + columns_before
        for row, columns_before in enumerate(padded or [0] * len(counts))
    ]
    pairs = zip(begins, counts, strict=True)
    return [range(begin, begin + count) for begin, count in pairs]


class PadRight(BatchedOperation):
    """Announces padding on the right: the next updates append `lengths[b]` tokens to row
    b, and in total max(`lengths`) columns, even if the longest row leaves; then
    `finalize` follows. Engines make this call only if some row has padding.

    Answer: `offsets`; omitted until `finalize`.
    """

    name, weight = "pad_right", 5
    effect = Effect.CONTROL
    answer = ROWS_OFFSETS
    text = "announce {lengths} tokens of the rows"
    fields = {"lengths": COUNTS, **CACHE}

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        return "no row has padding" if len(set(op["lengths"])) < 2 else None

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        batch = model.batches[name]
        if len(batch.rows) < 2 or max(batch.offsets) >= model.reach:
            return None
        most = max(2, draw_length(source, model, batch))
        lengths = [source.pick((1, most, source.between(1, most))) for _ in batch.rows]
        lengths[source.below(len(lengths))] = most
        return {"lengths": lengths}

    def draw_wrong(self, source: Source, model: BatchedModel, name: str) -> Fields:
        rows = len(model.batches[name].rows)
        return {"lengths": source.pick(([*range(2, rows + 1)], [*range(rows)]))}

    def run(self, op: Op, side: Any) -> Answer:
        name, lengths = op["cache"], list(op["lengths"])
        answer: Answer = side.ask_for(name, lambda: side.batches[name].pad_right(lengths))
        lengths.clear()  # the caller owns the list: a cache must not keep a reference
        return answer


class Finalize(BatchedOperation):
    """Ends the padding on the right, which `pad_right` announced.

    Answer: `offsets`.
    """

    name, weight = "finalize", 5
    effect = Effect.MOVES
    answer = ROWS_OFFSETS
    writes = True  # the cache may move rows to remove padding
    happened = "finalized"
    text = "end the padding on the right"

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        ready = [
            name
            for name, batch in model.batches.items()
            if batch.coming is not None and not batch.announced
        ]
        return {"op": self.name, "cache": source.pick(ready)} if ready else None

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op | None:
        """Draws a `finalize` without padding or too early. Only in the simplest states:
        in other states, the call would add cells that every run must reach.
        """
        wrong = [
            name
            for name, batch in model.batches.items()
            if (batch.coming is None or batch.announced)
            and len(batch.rows) > 1
            and not model.past[name]
            and (not batch.width or all(batch.offsets))
        ]
        return {"op": self.name, "cache": source.pick(wrong)} if wrong else None


# --- removing tokens --------------------------------------------------------------------


class Taking(BatchedOperation):
    """Removes the last tokens of each row.

    A ring that counts padding may have dropped columns although no row has dropped a
    token. Such a ring may refuse; if `ring` is "columns", it must refuse.

    Attributes:
        result: the field of the answer that contains the result of the method.
    """

    kinds = SLICED
    result: ClassVar[str]

    def get_counts(self, op: Op, rows: int) -> list[int]:
        raise NotImplementedError

    def say(self, op: Op, done: bool) -> Answer:
        raise NotImplementedError

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        batch = model.batches[op["cache"]]
        counts = self.get_counts(op, len(batch.rows))
        if len(counts) != len(batch.rows):
            return f"{len(counts)} counts for {len(batch.rows)} rows"
        pairs = zip(counts, batch.offsets, strict=True)
        fits = all(0 <= count <= offset for count, offset in pairs)
        return None if fits else "a row has fewer tokens"

    def run_reference(self, op: Op, model: BatchedModel) -> Answer:
        batch = model.batches[op["cache"]]
        refused = self.say(op, False) | model.say_offsets(op["cache"])
        counts = self.get_counts(op, len(batch.rows))
        after = ask(lambda: batch.clone())
        if "error" in after:
            return after
        if not after["result"].trim(counts):
            return refused
        answers = [self.say(op, True) | model.answer_offsets(after["result"])]
        if any(counts) and may_have_turned(batch):
            answers.append(refused)
        if model.config["ring"] == "columns":
            return answers[-1]
        return choose(answers)

    def run(self, op: Op, side: Any) -> Answer:
        answer: Answer = side.ask(lambda: self.call(op, side))
        if "error" in answer:
            return answer
        return {self.result: answer.get("result"), **side.say_offsets(op["cache"])}

    def resolve(self, op: Op, model: BatchedModel, observed: Answer) -> None:
        if op["cache"] not in model.batches or "error" in observed:
            return
        batch, past = model.batches[op["cache"]], model.past[op["cache"]]
        counts = self.get_counts(op, len(batch.rows))
        is_done = self.say(op, True).items() <= observed.items()
        if is_done:
            batch.trim(counts)
        if any(counts):
            past.add("rewind" if is_done else "refusal")


def may_have_turned(batch: BatchedCache) -> bool:
    """Tells whether a ring that counts padding has dropped a column."""
    return any(
        isinstance(member, RotatingCache) and batch.width > member.window
        for member in list_parts(batch.rows[0])
    )


class Trim(OnEither, Taking):
    """Removes the last `count` tokens of each row; a refusal changes no row.

    Answer: `trimmed`: `count`, or 0 if refused (by a ring that has dropped columns);
    `offsets`.
    """

    name, weight, result = "trim", 4, "trimmed"
    effect = Effect.REMOVES
    answer = any_of(record(trimmed=NUMBER, offsets=OFFSETS), record(trimmed=NUMBER))
    writes = True
    fields = {"count": INTEGER, **CACHE}

    def get_counts(self, op: Op, rows: int) -> list[int]:
        return [op["count"]] * rows

    def say(self, op: Op, done: bool) -> Answer:
        return {self.result: op["count"] if done else 0}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        shortest = min(model.batches[name].offsets)
        return {"count": source.pick((1, 1, 2, shortest, max(0, shortest - 1), 0))}

    def describe_here(self, op: Op) -> str:
        return f"trim {count(op['count'], 'token')}"


class Rollback(Taking):
    """Removes the last `counts[b]` tokens of each row b; a refusal changes no row.

    Answer: `done`: false if refused; `offsets`.
    """

    name, weight, result = "rollback", 4, "done"
    effect = Effect.REMOVES
    answer = any_of(record(done=BOOLEAN, offsets=OFFSETS), record(done=BOOLEAN), USAGE)
    writes = True
    text = "trim {counts} tokens of the rows"
    fields = {"counts": COUNTS, **CACHE}

    def get_counts(self, op: Op, rows: int) -> list[int]:
        return list(op["counts"])

    def say(self, op: Op, done: bool) -> Answer:
        return {self.result: done}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        offsets = model.batches[name].offsets
        drawn = [source.pick((0, 1, 2, 3, offset)) for offset in offsets]
        pairs = zip(drawn, offsets, strict=True)
        return {"counts": [min(count, offset) for count, offset in pairs]}
