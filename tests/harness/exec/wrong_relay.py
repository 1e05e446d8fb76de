"""Relays of our caches that change one answer, each in one way, in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.workers.registry import load
from tests.harness.exec.relay import Answer, Message, Relay, reply

Change = Callable[[Answer], Any]


def put(**fields: Any) -> Change:
    return lambda answer: answer | fields


def drop_row(name: str) -> Change:
    """An array without its last row."""

    def change(answer: Answer) -> Answer:
        array = answer[name]
        rows, *shape = array["shape"]
        data = array["data"][: len(array["data"]) // rows * (rows - 1)]
        return answer | {name: {**array, "shape": [rows - 1, *shape], "data": data}}

    return change


def drop_last(name: str) -> Change:
    return lambda answer: answer | {name: answer[name][:-1]}


def fill(*shape: int, value: Any = 1, dtype: str = "bool") -> dict[str, Any]:
    return {"shape": list(shape), "data": [value] * math.prod(shape), "dtype": dtype}


def offsets(change: Callable[[list[int]], Any]) -> Change:
    """Of batches and lists that are not empty, whose offsets are not all 0."""

    def act(answer: Answer) -> Answer:
        told = answer.get("offsets", ())
        return answer | {"offsets": change(told)} if any(told) else answer

    return act


ENTRY = {"group": 0, "namespace": None, "tokens": [1, 1], "block": 0}


def tell_entry(**fields: Any) -> Change:
    return put(entries=[{**ENTRY, **fields}])


def tell_event(event: Any, entry: Any) -> Change:
    return put(events=[{"event": event, "entry": entry}])


SHORTER, LONGER = offsets(lambda told: told[:-1]), offsets(lambda told: [*told, 0])
PART = "there is no part 1"

WAYS: Mapping[str, Mapping[str, tuple[str, Change]]] = {
    "batch-kv": {
        "keys of one row": ("update", drop_row("keys")),
        "offsets of one row": ("offsets", SHORTER),
        "many offsets": ("offsets", offsets(lambda told: [1] * 100_000)),
        "many sizes": ("size", put(sizes=[3] * 100_000)),
        "wrong offsets": ("offsets", offsets(lambda told: [n + 1 for n in told])),
        "mask in words": ("make_mask", put(mask="triangular")),
        "mask of no axes": ("make_mask", put(mask=fill())),
        "mask of one axis": ("make_mask", put(mask=fill(5))),
        "mask of three rows": ("make_mask", put(mask=fill(3, 1, 2, 2))),
        "mask of halves": ("make_mask", put(mask=fill(3, 3, value=0.5))),
        "mask of floats": ("make_mask", put(mask=fill(3, 3, value=0.5, dtype="float32"))),
        "mask of nothing": ("make_mask", put(mask=fill(2, 1, 3, 0))),
        "mask is null": ("make_mask", put(mask=None)),
        "mask is causal": ("make_mask", put(mask="causal")),
        "state of one row": ("state", drop_last("rows")),
        "state of null": ("state", put(rows=[None, None])),
        "sizes of one row": ("size", drop_last("sizes")),
        "extract short": ("extract", put(offset=1)),
        "extract unknown": ("extract", put(cache=99)),
        "rollback of one": ("rollback", put(done=1)),
        "save nothing": ("save", put(saved=None)),
        "open the same": ("open", put(cache=0)),
    },
    "batch-state": {
        "offsets of three rows": ("offsets", LONGER),
        "mask of no axes": ("make_mask", put(mask=fill())),
        "mask of one axis": ("make_mask", put(mask=fill(5))),
        "state of null": ("state", put(rows=[None, None])),
        "read of one row": ("read", drop_row("conv")),
    },
    "batch-list": {
        "extract one part": ("extract", SHORTER),
        "extract three parts": ("extract", LONGER),
        "extract a short part": ("extract", offsets(lambda told: [*told[:-1], 1])),
        "trim one part": ("trim", SHORTER),
        "free one part": ("free", put(offsets=[0])),
        "unknown part": ("update 1", put(error="failed", message=PART)),
        "part that refuses": ("state 1", put(error="usage", message=PART)),
        "part of one row": ("offsets 1", SHORTER),
        "keys of a part": ("update 1", drop_row("keys")),
    },
    "paged-full": {
        "start is late": ("schedule", put(start=2)),
        "no table": ("tables", drop_last("tables")),
        "table of nulls": ("tables", put(tables=[[None, None]])),
        "two tables": ("tables", lambda answer: {"tables": 2 * answer["tables"]}),
        "references twice": ("pool", put(references=[[1, 1], [1, 2]])),
        "entry of no group": ("entries", tell_entry(group=-1)),
        "entry of a far group": ("entries", tell_entry(group=7)),
        "entry of nothing": ("entries", tell_entry(tokens=[])),
        "entry that lies": ("entries", tell_entry(tokens=[7, 7])),
        "moved": ("events", tell_event("moved", ENTRY)),
        "stored nothing": ("events", tell_event("stored", None)),
        "cleared one": ("events", tell_event("cleared", ENTRY)),
        "no events": ("events", put(events=[])),
        "run fails": ("run", put(error="failed", message="out of memory")),
        "run is missing": ("run", put(error="missing", message="later")),
        "free is refused": ("free", put(error="usage", message="not now")),
        "update of none": ("update", put(requests=[])),
        "no moves": ("accept", put(moves=[])),
        "moves of blocks": ("accept", put(moves=[[0, 1]])),
    },
}
"""Kind → way → the operation whose answers are wrong, with the number of a part of a list
if it is only one, and the change."""


class Misbehaving(Relay):
    """Changes the answers to one operation."""

    def __init__(self, kind: str, operation: str, change: Change) -> None:
        backend = load("torch-cpu")
        (contract,) = (c for c, kinds in backend.contracts.items() if kind in kinds)
        declared = {contract: {kind: backend.contracts[contract][kind]}}
        super().__init__(replace(backend, contracts=declared))
        self.operation, self.change = operation, change

    def answer(self, message: Message) -> Answer:
        answer = super().answer(message)
        of_part = f"{message['op']} {message.get('part')}"
        if self.operation not in (message["op"], of_part):
            return answer
        return self.change(answer)  # type: ignore[no-any-return]


class Inline:
    """A relay in this process, in the place of the process of a driver."""

    def __init__(self, kind: str, operation: str = "", change: Change = dict) -> None:
        self.relay = Misbehaving(kind, operation, change)

    def exchange(self, request: bytes, name: str, seconds: float) -> bytes:
        return reply(self.relay, json.loads(request)).encode()

    def get_last_words(self) -> str:
        return ""

    def stop(self) -> None: ...
