"""Defines the operations that move rows, and operations on a whole batch."""

from __future__ import annotations

from typing import Any

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.messages import OFFSET, OFFSETS, PART, Pair
from lockstep.harness.contracts.answer_schemas import (
    NOTHING_OR_USAGE,
    NUMBER,
    TAGS,
    USAGE,
    any_of,
    list_of,
    record,
)
from lockstep.harness.contracts.batched.base import (
    BATCHES,
    CACHE,
    CACHE_NAME,
    ROW,
    ROWS,
    ROWS_OFFSETS,
    SINGLES,
    SLICED,
    BatchedOperation,
    OnEither,
)
from lockstep.harness.contracts.batched.model import (
    MOST_ROWS,
    BatchedModel,
    list_part_configs,
)
from lockstep.harness.contracts.batched.system import BatchedSystem
from lockstep.harness.contracts.layer.model import answer_offset, answer_tags
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Fields,
    Op,
    Source,
    format_fields,
    get_given,
)
from lockstep.harness.core.document import NAME, NAMES, Schema, integer, optional

SAVED: Schema = {**NAME, NAMES: "saved"}
CONTENTS = ("s", "t")


class Keeping(BatchedOperation):
    """Keeps some rows of a batch, in some order."""

    writes, weight, happened = True, 3, "rows-left"
    while_announced = True

    def draw_wrong(self, source: Source, model: BatchedModel, name: str) -> Fields:
        rows = len(model.batches[name].rows)
        return {"rows": source.pick(([], [rows], [0, rows]))}


class Filter(Keeping):
    """Keeps these rows in this order; no row may be listed twice. Between `pad_right` and
    `finalize`, the announced tokens of these rows and all announced columns are still
    written.

    Answer: `offsets`: the offset of each row.
    """

    name = "filter"
    effect = Effect.REMOVES | Effect.MOVES
    answer = ROWS_OFFSETS
    text = "keep rows {rows}"
    fields = {"rows": ROWS, **CACHE}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        rows = list(range(len(model.batches[name].rows)))
        longest = max(rows, key=lambda row: model.batches[name].offsets[row])
        if len(rows) > 1 and not source.below(3):
            rows.remove(longest)
        chosen = [row for row in rows if source.below(3)] or rows[:1]
        if not source.below(4):
            chosen.reverse()
        return {"rows": chosen}

    def draw_wrong(self, source: Source, model: BatchedModel, name: str) -> Fields:
        if source.below(2):
            return {"rows": [0, 0]}
        return super().draw_wrong(source, model, name)


class Select(Keeping):
    """Keeps these rows in this order; a row that is listed twice is copied, as in a beam
    search.

    Answer: `offsets`: the offset of each row.
    """

    name = "select"
    effect = Effect.REMOVES | Effect.MOVES
    answer = ROWS_OFFSETS
    text = "keep rows {rows}, each as often as it is named"
    fields = {"rows": ROWS, **CACHE}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        rows = len(model.batches[name].rows)
        return {"rows": [source.below(rows) for _ in range(source.between(1, 4))]}


class Repeat(BatchedOperation):
    """Repeats each row `times` times; copies of a row are adjacent.

    Answer: `offsets`.
    """

    name = "repeat"
    effect = Effect.MOVES
    answer = ROWS_OFFSETS
    writes = while_announced = True
    has_misuse = False
    text = "repeat each row {times} times"
    fields = {"times": integer(1, MOST_ROWS), **CACHE}

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        many = len(model.batches[op["cache"]].rows) * op["times"] > MOST_ROWS
        return f"there would be more than {MOST_ROWS} rows" if many else None

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        rows = len(model.batches[name].rows)
        return {"times": source.between(1, MOST_ROWS // rows)}


class Extend(BatchedOperation):
    """Adds the rows of another batch, and consumes that batch.

    Answer: `offsets`.
    """

    name, weight = "extend", 4
    effect = Effect.MOVES
    answer = ROWS_OFFSETS
    writes, happened = True, "extended"
    text = "add the rows of {other}"
    fields = {"other": CACHE_NAME, **CACHE}

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        added = model.batches.get(op["other"])
        if added is None:
            return f"there is no batch {op['other']}"
        rows = len(model.batches[op["cache"]].rows) + len(added.rows)
        return f"there would be {rows} rows" if rows > MOST_ROWS else None

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        candidates = [added for added in model.list_settled() if added != name]
        return {"other": source.pick(candidates)} if candidates else None

    def draw_wrong(self, source: Source, model: BatchedModel, name: str) -> Fields:
        return {"other": name}

    def run(self, op: Op, side: Any) -> Answer:
        name, added = op["cache"], op["other"]
        batch, rows_added = side.batches[name], side.batches[added]
        answer: Answer = side.ask_for(name, lambda: batch.extend(rows_added))
        if "error" not in answer:
            side.drop(added)
        return answer


class Extract(BatchedOperation):
    """Copies the tokens of one row into an independent single cache `into`.

    Answer: `offset`.
    """

    name, weight = "extract", 4
    effect = Effect.MOVES
    messages = {
        "extract": ({"row": int}, {**messages.CACHE, **OFFSET}),
        "extract.list": ({"row": int}, {**messages.CACHE, **OFFSETS}),
    }
    answer = any_of(record(offset=NUMBER), USAGE)
    while_announced = True
    text = "extract row {row} into {into}"
    fields = {"row": ROW, "into": CACHE_NAME, **CACHE}

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        return "the batch stays" if op["into"] == op["cache"] else None

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        row = source.below(len(model.batches[name].rows))
        return {"row": row, "into": source.pick(SINGLES)}

    def draw_wrong(self, source: Source, model: BatchedModel, name: str) -> Fields:
        return {"row": len(model.batches[name].rows), "into": source.pick(SINGLES)}

    def run(self, op: Op, side: Any) -> Answer:
        answer: Answer = side.ask(lambda: side.batches[op["cache"]].extract(op["row"]))
        if "error" in answer:
            return answer
        side.put_single(op["into"], answer.get("result"))
        offset: Answer = side.singles.tell(answer["result"], answer_offset)
        return offset

    def note(self, op: Op, model: BatchedModel) -> None:
        model.note_extracted(op["into"], model.batches[op["cache"]])


class Stack(BatchedOperation):
    """Makes a batch from single caches, and consumes the caches. Other libraries call
    this operation merge.

    Answer: `offsets`.
    """

    name, weight, happened = "stack", 4, "stacked"
    effect = Effect.MOVES
    answer = ROWS_OFFSETS
    is_method = False
    text = "stack {caches}"
    fields = {
        "caches": {
            **{"type": "array", "items": NAME, "maxItems": MOST_ROWS, NAMES: "cache"},
        },
        **CACHE,
    }

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        names = op["caches"]
        if len(set(names)) < len(names):
            return "a cache cannot become two rows"
        batches = [name for name in names if name in model.batches]
        return f"{batches[0]} is a batch" if batches else None

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        singles = list(model.singles.caches)
        if not source.below(4):  # a new name stands for an empty cache
            taken = {*singles, *model.batches}
            singles += [name for name in SINGLES if name not in taken][:1]
        if not singles:
            return None
        start, most = source.below(len(singles)), min(len(singles), 4)
        names = [*singles[start:], *singles[:start]][: source.between(1, most)]
        return {"op": self.name, "caches": names, "cache": source.pick(BATCHES)}

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op:
        return {"op": self.name, "caches": [], "cache": source.pick(BATCHES)}

    def run(self, op: Op, side: Any) -> Answer:
        name, caches = op["cache"], [side.singles.get(name) for name in op["caches"]]
        answer: Answer = side.ask_for(name, lambda: side.open_batch(name, caches=caches))
        for used in op["caches"] if "error" not in answer else ():
            if used != name:
                side.drop(used)
        return answer

    def note(self, op: Op, model: BatchedModel) -> None:
        super().note(op, model)
        model.note_stacked(model.batches[op["cache"]], op["caches"])


OTHER = {"batch-rotating": "window", "batch-state": "heads"}
"""Kind → a size of another batch whose saved content an empty batch must refuse."""

SIZE = optional(integer(1, 64))


class Save(BatchedOperation):
    """Stores all content as `into`."""

    name, weight = "save", 2
    effect = Effect.MOVES
    messages = {"save": ({}, messages.SAVED)}
    answer = NOTHING_OR_USAGE
    answers_each = False
    text = "save as {into}"
    fields = {"into": SAVED, **CACHE}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        return {"into": source.pick(CONTENTS)}

    def run(self, op: Op, side: Any) -> Answer:
        answer: Answer = side.ask(lambda: side.save(op["cache"], op["into"]))
        return answer


class Load(BatchedOperation):
    """Opens a batch with the content that was saved as `from`. If `window` or `heads` is
    set, loads the saved content of a batch with this window, or of states with this
    number of heads; the batch must refuse it.

    Answer: `offsets`, or `error`.
    """

    name, weight, happened = "load", 3, "loaded"
    effect = Effect.MOVES
    messages = {"load": (messages.SAVED, {})}
    answer = ROWS_OFFSETS
    text = "load {from}"
    fields = {"from": SAVED, **CACHE, **dict.fromkeys(OTHER.values(), SIZE)}

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        if op["from"] not in model.saved:
            return f"nothing was saved as {op['from']}"
        kind, config = model.config["kind"], model.config
        wrong = any(
            name != OTHER.get(kind) or config[name] == size
            for name, size in get_given(op, OTHER.values()).items()
        )
        return f"no {kind} is refused for this size" if wrong else None

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op | None:
        name, legal = OTHER.get(model.config["kind"]), self.draw(source, model)
        return {**legal, name: source.pick((1, 2, 3))} if name and legal else None

    def describe_here(self, op: Op) -> str:
        sizes = format_fields(op, get_given(op, OTHER.values()))
        return f"load what a batch with {sizes} saved" if sizes else f"load {op['from']}"

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        if not model.saved:
            return None
        saved = source.pick(list(model.saved))
        return {"op": self.name, "from": saved, "cache": source.pick(BATCHES)}

    def run_reference(self, op: Op, model: BatchedModel) -> Answer:
        if get_given(op, OTHER.values()):
            return {"error": "usage"}
        batch = model.saved[op["from"]].clone()
        batch.is_loaded = True
        model.put_batch(op["cache"], batch)
        self.note(op, model)
        return model.say_offsets(op["cache"])

    def run_backend(self, op: Op, system: BatchedSystem, model: BatchedModel) -> Answer:
        name, rows = op["cache"], len(model.saved[op["from"]].rows)
        if sizes := get_given(op, OTHER.values()):
            return system.load_other(sizes, rows)
        return system.ask_for(name, lambda: system.load(name, op["from"], rows))


# --- whole batches ----------------------------------------------------------------------


class Reading(OnEither):
    """Reads a batch; illegal from the announcement of padding until `finalize`."""

    has_misuse = False

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        pending = model.batches[op["cache"]].coming is not None
        return "padding was announced" if pending else None


class State(Reading):
    """Reads the whole content.

    Answer: `caches`: the `tags` of each row.
    """

    name, weight = "state", 2
    effect = Effect.READS
    messages = {
        "state": (PART, {"rows": list[Pair | None]}),
        "state.states": (PART, {"rows": list[messages.State]}),
    }
    answer = any_of(record(caches=list_of(record(tags=TAGS))), USAGE)

    def run_reference_batch(self, op: Op, model: BatchedModel) -> Answer:
        return model.tell(
            lambda member: {
                "caches": [answer_tags(row) for row in member.batches[op["cache"]].rows]
            }
        )

    def run_backend_batch(
        self, op: Op, system: BatchedSystem, model: BatchedModel
    ) -> Answer:
        name, rows = op["cache"], model.batches[op["cache"]].rows
        return system.ask_parts(lambda part, rows: part.read_state(name, rows), rows)


class Size(Reading):
    """Counts the tokens in each row.

    Answer: `sizes`: the number of tokens in each row.
    """

    name, weight = "size", 2
    effect = Effect.READS
    messages = {"size": (PART, {"sizes": list[int]})}
    answer = any_of(record(sizes=TAGS), USAGE)
    kinds = SLICED

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        kinds = [member["kind"] for member in list_part_configs(model.config)]
        has_state = "batch-state" in kinds
        return "a state has no size" if has_state else super().why_illegal(op, model)

    def run_reference_batch(self, op: Op, model: BatchedModel) -> Answer:
        return model.tell(
            lambda member: {
                "sizes": [row.size() for row in member.batches[op["cache"]].rows]
            }
        )

    def run_backend_batch(
        self, op: Op, system: BatchedSystem, model: BatchedModel
    ) -> Answer:
        return system.ask_parts(lambda part, _: part.read_sizes(op["cache"]))


class Clone(OnEither):
    """Makes an independent copy with the name `into`."""

    name, weight = "clone", 2
    effect = Effect.MOVES
    messages = {"clone": ({}, messages.CACHE)}
    answer = NOTHING_OR_USAGE
    answers_each = False
    text = "clone into {into}"
    fields = {"into": CACHE["cache"], **CACHE}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        return {"into": source.pick([target for target in BATCHES if target != name])}

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        if op["into"] == op["cache"]:
            return "a cache cannot be cloned into itself"
        return super().why_illegal(op, model)

    def run_reference(self, op: Op, model: BatchedModel) -> Answer:
        if op["cache"] not in model.batches:
            model.drop(op["into"])
        return super().run_reference(op, model)

    def run_backend(self, op: Op, system: BatchedSystem, model: BatchedModel) -> Answer:
        if op["cache"] not in model.batches:
            system.drop(op["into"])
        return super().run_backend(op, system, model)

    def note(self, op: Op, model: BatchedModel) -> None:
        model.past[op["into"]].add("cloned")

    def run(self, op: Op, side: Any) -> Answer:
        answer: Answer = side.ask(lambda: side.batches[op["cache"]].clone())
        if "error" in answer:
            return answer
        side.put_batch(op["into"], answer.get("result"))
        return {}


class Free(OnEither):
    """Empties all rows.

    Answer: `offsets`.
    """

    name, weight, happened = "free", 2, "freed"
    effect = Effect.REMOVES
    answer = ROWS_OFFSETS
    writes = renews = True
