"""Limits in bytes, while a program is made simpler: with fewer tokens, or others, what
was just too low is not any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lockstep.harness.contracts.prefix.conversations import ConversationModel, open_layer
from lockstep.harness.contracts.prefix.operations import OPERATIONS
from lockstep.harness.contracts.types import Op

Simpler = tuple[Mapping[str, Any], Sequence[Op]]
Propose = Callable[[Sequence[Op]], Iterable[list[Op]]]
"""Simpler operations for some."""


def get_unit(config: Mapping[str, Any]) -> int:
    """The bytes of one token in all layers."""
    layers = [open_layer(config, spec) for spec in config["layers"]]
    return sum(layer.count_bytes(0, 1) for layer in layers if layer is not None)


def scale_limits(
    old: Mapping[str, Any], new: Mapping[str, Any], ops: Sequence[Op]
) -> Simpler:
    """Limits for as many tokens in the new config as in the old one."""
    if old["kind"] != "trie":
        return new, ops
    before, after = max(1, get_unit(old)), get_unit(new)
    return change_limits(new, ops, lambda limit: limit * after // before)


def change_limits(
    config: Mapping[str, Any], ops: Sequence[Op], change: Callable[[int], int]
) -> Simpler:
    """The same with other limits, where there are any."""
    limit = config["limit"]
    changed = [
        {**op, "bytes": change(op["bytes"])}
        if op["op"] == "limit" and op["bytes"] is not None
        else op
        for op in ops
    ]
    return {**config, "limit": limit if limit is None else change(limit)}, changed


def list_first_limits(config: Mapping[str, Any], ops: Sequence[Op]) -> Iterator[Simpler]:
    """A limit that holds from the beginning on, not from some operation on."""
    for place, op in enumerate(ops):
        if op["op"] == "limit":
            yield {**config, "limit": op["bytes"]}, [*ops[:place], *ops[place + 1 :]]


def list_tight_limits(
    config: Mapping[str, Any], ops: Sequence[Op], propose: Propose
) -> Iterator[Simpler]:
    """Shorter operations, and a limit that is just too low for what is stored then."""
    for place, op in enumerate(ops):
        if op["op"] == "limit":
            for before in propose(ops[:place]):
                limit = max(0, count_stored(config, before) - 1)
                yield config, [*before, {**op, "bytes": limit}, *ops[place + 1 :]]


def count_stored(config: Mapping[str, Any], ops: Sequence[Op]) -> int:
    """The bytes that a trie stores after these operations."""
    model = ConversationModel(config, rows=False)
    for op in ops:
        operation = OPERATIONS[op["op"]]
        if operation.illegal(op, model) is None:
            operation.expect(op, model)
        model.tag += operation.tokens(op)
    return int(model.describe_store()["bytes"])


def list_lower_limits(
    config: Mapping[str, Any], ops: Sequence[Op], propose: Propose
) -> Iterator[Simpler]:
    """Lower limits, alone and for shorter operations."""
    has_limit = config["limit"] is not None or any(op.get("bytes") for op in ops)
    if not has_limit:
        return
    unit = max(1, get_unit(config))
    for less in (unit, unit // 2, 2 * unit):
        lower = partial(lower_by, less)
        yield change_limits(config, ops, lower)
        for shorter in propose(ops):
            yield change_limits(config, shorter, lower)


def lower_by(less: int, limit: int) -> int:
    return max(0, limit - less)
