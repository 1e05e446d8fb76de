"""Simpler paged programs: fewer requests, shorter and plainer tokens, smaller groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Changed, list_steps, replace_at
from lockstep.harness.contracts.operation import (
    Config,
    Op,
    Operations,
    list_names,
    rename,
)
from lockstep.harness.contracts.paged.transfers import name_transfer

LETTERS: Mapping[str, Callable[[int], str]] = {
    "request": lambda number: chr(ord("a") + number),
    "transfer": name_transfer,
}


def merge(first: Op, second: Op) -> Op | None:
    """Joins two evictions."""
    if first["op"] == second["op"] == "evict":
        return {**first, "count": min(256, first["count"] + second["count"])}
    return None


def simplify(ops: Sequence[Op], operations: Operations) -> Iterator[list[Op]]:
    """One request fewer; no namespaces; no drafts; shorter tokens everywhere at once;
    simpler single operations."""
    yield from list_fewer_names(ops, operations)
    yield from list_without(ops)
    yield from list_shorter(ops)
    for place, op in enumerate(ops):
        for simpler in list_simpler(op):
            yield replace_at(ops, place, simpler)


def list_fewer_names(ops: Sequence[Op], operations: Operations) -> Iterator[list[Op]]:
    """Lets one request do what another does, or leaves all of one out; transfers, too."""
    for sort in LETTERS:
        names = sorted({name for op in ops for name in list_names(op, operations, sort)})
        for name in names:
            yield [op for op in ops if name not in list_names(op, operations, sort)]
            for other in names:
                if other < name:
                    yield [rename(op, operations, sort, {name: other}) for op in ops]


def list_without(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """All requests in one namespace; no drafts at all; one token for all."""
    if any(op.get("namespace") for op in ops):
        yield [{**op, "namespace": None} if "namespace" in op else op for op in ops]
    if any(op.get("drafts") for op in ops):
        yield [{**op, "drafts": [], "kept": 0} if "drafts" in op else op for op in ops]
    used = {token for op in ops for token in op.get("tokens", ())}
    used |= {op["sampled"] for op in ops if "sampled" in op}
    for token in sorted(used - {1}):
        yield [replace_token(op, token, 1) for op in ops]


def replace_token(op: Op, token: int, other: int) -> Op:
    changed: dict[str, Any] = {}
    for field in ("tokens", "drafts"):
        if field in op:
            changed[field] = [other if one == token else one for one in op[field]]
    if op.get("sampled") == token:
        changed["sampled"] = other
    return {**op, **changed}


def list_shorter(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Leaves out the same positions at the beginning of all requests."""
    opened = [op["tokens"] for op in ops if op["op"] == "open"]
    most = min((len(tokens) for tokens in opened), default=1) - 1
    for fewer in list_steps(most):
        yield [
            {**op, "tokens": op["tokens"][fewer:]} if op["op"] == "open" else op
            for op in ops
        ]


LEAST = ("count", 1), ("kept", 0), ("to", 1), ("sampled", 1), ("arrived", 0)


def list_simpler(op: Op) -> Iterator[Op]:
    """Simpler forms of one operation."""
    tokens = op.get("tokens", ())
    for fewer in list_steps(len(tokens) - 1):
        yield {**op, "tokens": tokens[: len(tokens) - fewer]}
    for place, token in enumerate(tokens):
        if token != 1:
            yield {**op, "tokens": replace_at(tokens, place, 1)}
    for field, least in LEAST:
        if op.get(field, least) > least:
            for lower in list_steps(op[field] - least):
                yield {**op, field: op[field] - lower}
    for fewer in list_steps(len(op.get("drafts", ()))):
        left = len(op["drafts"]) - fewer
        yield {**op, "drafts": op["drafts"][:left], "kept": min(op["kept"], left)}
    if op.get("reuse") is False:
        yield {**op, "reuse": True}


def propose_configs(config: Config, ops: Sequence[Op]) -> Iterator[Changed]:
    """A group fewer, one layer in each, smaller blocks and widths, more blocks."""
    groups = config["groups"]
    for number in range(len(groups) if len(groups) > 1 else 0):
        yield {**config, "groups": replace_at(groups, number)}, ops
    for number, group in enumerate(groups):
        for simpler in list_simpler_groups(group):
            yield {**config, "groups": replace_at(groups, number, simpler)}, ops


def list_simpler_groups(group: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if group["layers"] > 1:
        yield {**group, "layers": 1}
    for field in ("block", "width"):
        if group.get(field, 0) > 1:
            for lower in list_steps(group[field] - 1):
                yield {**group, field: group[field] - lower}
