"""Defines the base classes of the batched contract's operations."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

from lockstep.harness.contracts.answer_schemas import (
    NOTHING,
    OFFSETS,
    USAGE,
    any_of,
    list_alternatives,
    list_of,
    record,
)
from lockstep.harness.contracts.batched.model import (
    LIST,
    LONG_REACH,
    MOST_ROWS,
    BatchedModel,
    list_part_configs,
)
from lockstep.harness.contracts.layer.operations import (
    LARGE,
    CacheOperation,
    LayerOperation,
)
from lockstep.harness.contracts.layer.operations import OPERATIONS as OF_A_LAYER
from lockstep.harness.contracts.operation import Answer, Op, Source
from lockstep.harness.core.document import NAME, NAMES, Schema, integer
from lockstep.reference.batched import BatchedCache

CACHE_NAME: Schema = {**NAME, NAMES: "cache"}
CACHE: Mapping[str, Schema] = {"cache": {**CACHE_NAME, "default": "a"}}
ROW: Schema = integer(0, MOST_ROWS)
ROWS: Schema = {"type": "array", "items": ROW, "maxItems": MOST_ROWS}
COUNTS: Schema = {"type": "array", "items": integer(0, 1024), "maxItems": MOST_ROWS}

ROWS_OFFSETS = any_of(record(offsets=OFFSETS), NOTHING, USAGE)
OF_LISTS = ("error", "trimmed", "done")
"""The fields that the answer of a list contains once, not once for each cache."""

BATCHES, SINGLES = ("a", "b", "c"), ("x", "y", "z")

SLICED = ("batch-kv", "batch-rotating", LIST)
"""The kinds whose rows can consist of tokens; a list that contains a state refuses
`trim` and `rollback`."""


class BatchedOperation(CacheOperation):
    """An operation on the batch that its field `cache` names.

    Attributes:
        happened: the abstract state after the operation; empty for none.
        renews: whether the events before the operation no longer count as abstract
            states.
        answers_each: whether the answer of a list contains one answer for each cache.
        while_announced: whether the operation is legal from the announcement of padding
            until `finalize`.
    """

    fields: ClassVar[Mapping[str, Schema]] = CACHE
    has_misuse = True
    happened: ClassVar[str] = ""
    renews: ClassVar[bool] = False
    answers_each: ClassVar[bool] = True
    while_announced: ClassVar[bool] = False

    def get_answer(self, kind: str) -> Schema:
        return nest(self.answer) if kind == LIST and self.answers_each else self.answer

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        if op["cache"] not in model.batches:
            return f"there is no batch {op['cache']}"
        return self.why_illegal_here(op, model)

    def why_illegal_here(self, op: Op, model: BatchedModel) -> str | None:
        """Returns why `op` is illegal for the existing batch, or None."""
        return None

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        names = list(model.batches) if self.while_announced else model.list_settled()
        return self.draw_for(source, model, source.pick(names)) if names else None

    def draw_misuse(self, source: Source, model: BatchedModel) -> Op | None:
        """Draws an invalid call: wrong fields or, while padding is announced, a call that
        must wait for `finalize`."""
        if not model.batches:
            return None
        name = source.pick(list(model.batches))
        if model.batches[name].coming is not None and not self.while_announced:
            return self.draw_for(source, model, name)
        return self.draw_misuse_of(source, model, name)

    def run(self, op: Op, side: Any) -> Answer:
        """Calls the method with the operation's name, and returns the offsets."""
        answer: Answer = side.ask_for(op["cache"], lambda: self.call(op, side))
        return answer

    def call(self, op: Op, side: Any) -> Any:
        """Calls the method with the operation's name and fields."""
        fields = [copy(op[name]) for name in self.fields if name != "cache"]
        return getattr(side.batches[op["cache"]], self.name)(*fields)

    def run_reference(self, op: Op, model: BatchedModel) -> Answer:
        answer = self.run(op, model)
        if "error" not in answer:
            self.note(op, model)
        return answer

    def note(self, op: Op, model: BatchedModel) -> None:
        """Records the event in the model, for the abstract states."""
        past = model.past[op["cache"]]
        if self.renews:
            past.clear()
        past.update([self.happened] if self.happened else [])

    def describe_row(self, op: Op, row: int) -> str:
        return f"query {row}"


def nest(schema: Schema) -> Schema:
    """Makes the schema of the answer of a list from the schema of one cache's answer."""
    nested = []
    for option in list_alternatives(schema):
        fields = dict(option["properties"])
        shared = {name: fields.pop(name) for name in OF_LISTS if name in fields}
        caches = {} if "error" in shared else {"caches": list_of(record(**fields))}
        nested.append(record(**shared, **caches))
    return any_of(*nested)


class OnEither(BatchedOperation):
    """An operation that may run on a batch or on a single cache. On a single cache, it is
    the operation of the layer contract with the same name."""

    def get_answer(self, kind: str) -> Schema:
        answer = any_of(self.answer, self.single.answer)
        return nest(answer) if kind == LIST and self.answers_each else answer

    @property
    def single(self) -> LayerOperation:
        """The operation of the layer contract, for a single cache."""
        return OF_A_LAYER[self.name]

    def narrow(self, op: Op) -> Op:
        """Returns the operation in the form of the layer contract."""
        fields = {name: op[name] for name in self.single.fields if name in op}
        return self.single.complete({"op": self.name, **fields})

    def why_illegal(self, op: Op, model: BatchedModel) -> str | None:
        name = op["cache"]
        if name in model.batches:
            return self.why_illegal_here(op, model)
        return self.single.why_illegal(self.narrow(op), model.singles)

    def draw(self, source: Source, model: BatchedModel) -> Op | None:
        singles = list(model.singles.caches)
        if not singles or source.below(4) < 3:
            return super().draw(source, model)
        name, member = source.pick(singles), source.pick(model.split())
        return self.single.draw_for(source, member.singles, name)

    def run_reference(self, op: Op, model: BatchedModel) -> Answer:
        if op["cache"] in model.batches:
            return self.run_reference_batch(op, model)
        model.singles.tag = model.tag
        return self.single.run_reference(self.narrow(op), model.singles)

    def run_backend(self, op: Op, system: Any, model: BatchedModel) -> Answer:
        if op["cache"] in model.batches:
            return self.run_backend_batch(op, system, model)
        return self.single.run_backend(self.narrow(op), system.singles, model.singles)

    def verify(self, op: Op, system: Any, model: BatchedModel) -> None:
        if op["cache"] not in model.batches:
            self.single.verify(self.narrow(op), system.singles, model.singles)

    def run_reference_batch(self, op: Op, model: BatchedModel) -> Answer:
        return super().run_reference(op, model)

    def run_backend_batch(self, op: Op, system: Any, model: BatchedModel) -> Answer:
        return self.run(op, system)


def draw_length(source: Source, model: BatchedModel, batch: BatchedCache) -> int:
    """Draws the number of columns of an update; often, a row then ends near a boundary,
    such as the end of a window."""
    edges, members = [1, 2, 3], list_part_configs(model.config)
    sizes = [member[name] for member in members for name in ("window", "chunk", "step")]
    for offset in {min(batch.offsets), max(batch.offsets), batch.width}:
        for size in dict.fromkeys(sizes):
            if size:
                distance = size - offset % size
                edges += [distance - 1, distance, distance + 1, size - 1, size, size + 1]
    longest = 12
    if model.reach == LONG_REACH:
        longest = 160
        if model.tag < LARGE:
            edges += [257, 600]
            longest = 600
    length = source.pick(edges)
    return length if 1 <= length <= longest else 1 + length % 5
