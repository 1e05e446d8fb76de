"""Yields simpler paged programs: fewer requests, simpler tokens, smaller groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lockstep.harness.contracts.operation import Config, Op, list_names, rename
from lockstep.harness.contracts.paged.base import keep_legal, name_transfer
from lockstep.harness.contracts.paged.model import can_lag, list_groups
from lockstep.harness.contracts.paged.operations import OPERATIONS
from lockstep.harness.contracts.rewrites import (
    Changed,
    Rewrite,
    list_lower,
    list_steps,
    replace_at,
    simplify_each,
)

LETTERS: Mapping[str, Callable[[int], str]] = {
    "request": lambda number: chr(ord("a") + number),
    "transfer": name_transfer,
}


def merge(first: Op, second: Op) -> Op | None:
    """Merges two evictions into one, and a launch and a finish into a run."""
    if (first["op"], second["op"]) == ("launch", "finish"):
        return {**first, "op": "run"}
    if first["op"] == second["op"] == "evict":
        return {**first, "count": min(256, first["count"] + second["count"])}
    return None


def leave_out_names(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Removes all operations of one request or one transfer, or joins two names."""
    for sort in LETTERS:
        named = {name for op in ops for name in list_names(op, OPERATIONS, sort)}
        names = sorted(named)
        for index, name in enumerate(names):
            yield [op for op in ops if name not in list_names(op, OPERATIONS, sort)]
            for earlier in names[:index]:
                yield [rename(op, OPERATIONS, sort, {name: earlier}) for op in ops]


def unify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Replaces a name or a key, drops all extras or drafts, or replaces one token by 1
    everywhere."""
    for field in ("namespace", "adapter"):
        named = {name for op in ops if (name := op.get(field))}
        for names in (named, *({name} for name in sorted(named))):
            for new in (None, *({"x"} - named)) if names else ():
                yield [{**op, field: new} if op.get(field) in names else op for op in ops]
    keys = {key for op in ops for _, _, key in op.get("extras", ())}
    if keys:
        yield [{**op, "extras": []} if "extras" in op else op for op in ops]
    for key in sorted(keys):
        for new in sorted({"x", "y"} - keys):
            yield [replace_key(op, key, new) for op in ops]
    if any(op.get("drafts") for op in ops):
        none = {"drafts": [], "parents": [], "kept": 0}
        yield [{**op, **none} if "drafts" in op else op for op in ops]
    used = {token for op in ops for token in op.get("tokens", ())}
    used |= {op["sampled"] for op in ops if "sampled" in op}
    for token in sorted(used - {1}):
        yield [replace_token(op, token, 1) for op in ops]


def replace_key(op: Op, key: str, new: str) -> Op:
    extras = [
        [*ends, new if name == key else name] for *ends, name in op.get("extras", ())
    ]
    return {**op, "extras": extras} if extras else op


def cut(op: Op, begin: int, end: int) -> Op:
    """Returns an operation with its tokens [begin, end) only."""
    moved = [
        [first - begin, last - begin, key] for first, last, key in op.get("extras", ())
    ]
    extras = {"extras": keep_legal(moved, end - begin)} if moved else {}
    return {**op, "tokens": op["tokens"][begin:end], **extras}


def replace_token(op: Op, token: int, new: int) -> Op:
    fields = [field for field in ("tokens", "drafts") if field in op]
    lists = {name: [new if x == token else x for x in op[name]] for name in fields}
    return {**op, **lists, **({"sampled": new} if op.get("sampled") == token else {})}


def list_shorter(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Removes the same positions at the beginning of all requests."""
    opened = [op["tokens"] for op in ops if op["op"] == "open"]
    most = min((len(tokens) for tokens in opened), default=1) - 1
    for fewer in list_steps(most):
        yield [
            cut(op, fewer, len(op["tokens"])) if op["op"] == "open" else op for op in ops
        ]


MINIMUMS = {"count": 1, "kept": 0, "to": 1, "sampled": 1, "arrived": 0}


def list_simpler(op: Op) -> Iterator[Op]:
    """Yields simpler forms of one operation."""
    tokens = op.get("tokens", ())
    for fewer in list_steps(len(tokens) - 1):
        yield cut(op, 0, len(tokens) - fewer)
    for index, token in enumerate(tokens):
        if token != 1:
            yield {**op, "tokens": replace_at(tokens, index, 1)}
    extras = op.get("extras", ())
    for index, (first, end, key) in enumerate(extras):
        if first + 1 < end:
            yield {**op, "extras": replace_at(extras, index, [first, end - 1, key])}
    yield from list_lower(op, MINIMUMS)
    for fewer in list_steps(len(op.get("drafts", ()))):
        count = len(op["drafts"]) - fewer
        lists = {name: op[name][:count] for name in ("drafts", "parents")}
        yield {**op, **lists, "kept": min(op["kept"], count)}
    if parents := op.get("parents"):
        yield {**op, "parents": []}
        for index, parent in enumerate(parents):
            if parent > 0:
                yield {**op, "parents": replace_at(parents, index, 0)}
    if op.get("reuse") is False:
        yield {**op, "reuse": True}
    if op.get("lags"):
        yield {**op, "lags": False}


def propose_configs(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """Yields configs with one reading layer or one group fewer, one layer per group, a
    group that does not lag, or smaller sizes."""
    groups, reads = config["groups"], config["reads"]
    for index in range(len(reads)):
        yield {**config, "reads": replace_at(reads, index)}, ops
    if config["lags"] and not can_lag(config):
        yield {**config, "lags": False}, ops
    for index in range(len(groups) if len(groups) > 1 else 0):
        yield leave_out_layers(config, index, replace_at(groups, index)), ops
    for index, group in enumerate(groups):
        if group["layers"] > 1:
            plain = replace_at(groups, index, {**group, "layers": 1})
            yield leave_out_layers(config, index, plain), ops
        prompt = [{**group, "lags": False}] if group.get("lags") else []
        for simpler in (*prompt, *list_lower(group, {"block": 1, "width": 1})):
            yield {**config, "groups": replace_at(groups, index, simpler)}, ops


def leave_out_layers(
    config: Config, index: int, groups: Sequence[Mapping[str, int]]
) -> Config:
    """Replaces the groups by `groups`, in which group `index` has lost all its layers, or
    all layers except one.

    Layers then read the remaining layer of the group; if there is none, they are left
    out. Later layers get lower numbers.
    """
    layers = list_groups(config)
    first, count = layers.index(index), layers.count(index)
    lost = len(layers) - sum(group["layers"] for group in groups)
    reads = [
        first if first <= owner < first + count else owner - lost * (owner > first)
        for owner in config["reads"]
        if lost < count or layers[owner] != index
    ]
    return {**config, "groups": groups, "reads": reads}


REWRITES: Sequence[Rewrite] = (
    leave_out_names,
    unify,
    list_shorter,
    simplify_each(list_simpler),
)
