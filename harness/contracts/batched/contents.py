"""Defines operations that remove tokens, and operations on a whole batch."""

from __future__ import annotations

from typing import Any

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.messages import PART, Pair
from lockstep.harness.contracts.answer_schemas import (
    BOOLEAN,
    NOTHING,
    NOTHING_OR_USAGE,
    NUMBER,
    OFFSETS,
    TAGS,
    USAGE,
    any_of,
    list_of,
    record,
)
from lockstep.harness.contracts.batched.base import (
    BATCHES,
    CACHE,
    COUNTS,
    BatchedOperation,
    Fields,
    OnEither,
)
from lockstep.harness.contracts.batched.columns import list_parts
from lockstep.harness.contracts.batched.model import (
    LIST,
    BatchedModel,
    list_part_configs,
)
from lockstep.harness.contracts.batched.system import BatchedSystem
from lockstep.harness.contracts.layer.model import answer_tags
from lockstep.harness.contracts.layer.operations import count
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source, ask, choose
from lockstep.harness.core.document import INTEGER
from lockstep.reference.batched import BatchedCache
from lockstep.reference.rotating import RotatingCache

SLICED = ("batch-kv", "batch-rotating", LIST)
"""The kinds whose rows can consist of tokens; a list that contains a state refuses
`trim` and `rollback`."""


class Taking(BatchedOperation):
    """Removes the last tokens of each row.

    A ring that counts padding may have dropped columns although no row has dropped a
    token. Then it may refuse, or must with `ring` "columns".
    """

    kinds = SLICED

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
    """Removes the last `count` tokens of each row, of all rows or of none.

    Answer: `trimmed`: `count`, or 0 if refused (a ring that has dropped columns);
    `offsets`.
    """

    name, weight = "trim", 4
    effect = Effect.REMOVES
    answer = any_of(record(trimmed=NUMBER, offsets=OFFSETS), record(trimmed=NUMBER))
    writes = True
    fields = {"count": INTEGER, **CACHE}

    def get_counts(self, op: Op, rows: int) -> list[int]:
        return [op["count"]] * rows

    def say(self, op: Op, done: bool) -> Answer:
        return {"trimmed": op["count"] if done else 0}

    def run_reference_batch(self, op: Op, model: BatchedModel) -> Answer:
        return Taking.run_reference(self, op, model)

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        shortest = min(model.batches[name].offsets)
        return {"count": source.pick((1, 1, 2, shortest, max(0, shortest - 1), 0))}

    def run_backend_batch(
        self, op: Op, system: BatchedSystem, model: BatchedModel
    ) -> Answer:
        name = op["cache"]
        answer = system.ask(lambda: system.batches[name].trim(op["count"]))
        if "error" in answer:
            return answer
        return {"trimmed": answer.get("result"), **system.say_offsets(name)}

    def describe_here(self, op: Op) -> str:
        return f"trim {count(op['count'], 'token')}"


class Rollback(Taking):
    """Removes the last `counts[b]` tokens of each row, of all rows or of none.

    Answer: `done`, `offsets`.
    """

    name, weight = "rollback", 4
    effect = Effect.REMOVES
    answer = any_of(record(done=BOOLEAN, offsets=OFFSETS), record(done=BOOLEAN), USAGE)
    writes = True
    text = "trim {counts} tokens of the rows"
    fields = {"counts": COUNTS, **CACHE}

    def get_counts(self, op: Op, rows: int) -> list[int]:
        return list(op["counts"])

    def say(self, op: Op, done: bool) -> Answer:
        return {"done": done}

    def draw_fields(self, source: Source, model: BatchedModel, name: str) -> Fields:
        offsets = model.batches[name].offsets
        drawn = [source.pick((0, 1, 2, 3, offset)) for offset in offsets]
        pairs = zip(drawn, offsets, strict=True)
        return {"counts": [min(count, offset) for count, offset in pairs]}

    def run_backend(self, op: Op, system: BatchedSystem, model: BatchedModel) -> Answer:
        name, counts = op["cache"], list(op["counts"])
        answer = system.ask(lambda: system.batches[name].rollback(counts))
        if "error" in answer:
            return answer
        return {"done": answer.get("result"), **system.say_offsets(name)}


class Reading(OnEither):
    """Reads a batch, which nobody does before the announced padding has ended."""

    has_misuse = False

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        pending = model.batches[op["cache"]].coming is not None
        return "padding was announced" if pending else None


class State(Reading):
    """Reads all that is held.

    Answer: `caches`: `tags` for each row.
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
        return system.read_state(op["cache"], model.batches[op["cache"]].rows)


class Size(Reading):
    """Counts the tokens held.

    Answer: `sizes`.
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
        return system.read_sizes(op["cache"])


class Clone(OnEither):
    """Makes an independent copy, as `into`."""

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
    answer = any_of(record(offsets=OFFSETS), NOTHING, USAGE)
    writes = renews = True
