"""Yields simpler serving programs: shorter prompts, fewer parts of earlier prompts in a
prompt, simpler questions to the probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.rewrites import (
    Changed,
    Rewrite,
    list_lower,
    list_steps,
    replace_at,
    simplify_each,
)

MINIMUMS = {"before": 0, "gap": 0, "new": 0, "back": 1, "at": 0, "count": 1, "answers": 2}


def list_simpler(op: Op) -> Iterator[Op]:
    """Yields simpler versions of an operation with a prompt."""
    if "pieces" not in op:
        return
    if op["op"] != "complete":
        simple = {name: value for name, value in op.items() if name != "answers"}
        yield {**simple, "op": "complete"}
    if op["pieces"]:
        length = sum(max(0, end - begin) for begin, end in op["pieces"])
        plain = {**op, "of": None, "pieces": [], "gap": 0}
        yield plain
        yield {**plain, "new": op["new"] + length}
    for name in ("slot", "head", "about"):
        if op[name] is not None:
            yield {**op, name: None}
    minimums = {
        name: least for name, least in MINIMUMS.items() if op.get(name) is not None
    }
    yield from list_lower(op, minimums)
    for index, (begin, end) in enumerate(op["pieces"]):
        yield {**op, "pieces": replace_at(op["pieces"], index)}
        for less in list_steps(end - begin):
            yield {**op, "pieces": replace_at(op["pieces"], index, [begin, end - less])}
            yield {**op, "pieces": replace_at(op["pieces"], index, [begin + less, end])}


def shorten_together(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs in which a request has fewer new tokens, and every operation that
    asks for a distance asks for a shorter distance, too."""
    for index, op in enumerate(ops):
        for less in list_steps(op.get("new") or 0):
            if op["head"] is not None and (op["back"] or 0) > less:
                shorter = {**op, "new": op["new"] - less, "back": op["back"] - less}
                yield replace_at(ops, index, shorter)


REWRITES: Sequence[Rewrite] = (simplify_each(list_simpler), shorten_together)


def propose_configs(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """Yields simpler configs."""
    for name in ("alphabet", "slots"):
        if config[name] is not None:
            yield {**config, name: None}, ops
    for simpler in list_lower(config, {"layers": 1, "heads": 1, "distance": 1}):
        yield simpler, ops
