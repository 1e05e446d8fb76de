"""What makes a prefix program simpler: fewer tokens, fewer different ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.prefix.limits import (
    list_first_limits,
    list_lower_limits,
    list_tight_limits,
    scale_limits,
)
from lockstep.harness.contracts.types import Op
from lockstep.harness.core.fields import MAX_LENGTH

LISTS = ("tokens", "generate")
MOST_OTHERS = 5
"""Tokens in whose place another one is tried."""


def merge_feeds(first: Op, second: Op) -> Op | None:
    """Two passes of one user in a row are one, if nothing was generated between."""
    same = first["op"] == second["op"] == "feed" and first["user"] == second["user"]
    count = first.get("count", 0) + second.get("count", 0)
    if not same or first["generate"] or count > MAX_LENGTH:
        return None
    return {**second, "count": count}


def simplify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One request fewer, what it computed left to the next; what was generated asked for
    from the start; one token fewer in the same place of all requests, or in one; one
    token called like another."""
    for begin, end in list_requests(ops):
        yield [*ops[:begin], *grow_pass(ops[end + 1 :], count_fed(ops[begin:end]))]
        request = ask_at_once(ops[begin:end])
        if request is not None:
            yield [*ops[:begin], *request, *ops[end:]]
    for place, op in enumerate(ops):
        if op["op"] == "cancel":
            yield [*ops[:place], {**op, "op": "close"}, *ops[place + 1 :]]
    longest = max((len(op["tokens"]) for op in ops if op["op"] == "begin"), default=0)
    for place in range(longest):
        shorter = [leave_out_token(op, place) for op in ops]
        if all(op.get("tokens", [0]) for op in shorter):
            yield [shorten_pass(op) for op in shorter]
            yield shorter
    for place, op in enumerate(ops):
        for name in LISTS:
            for at in range(len(op.get(name, ()))):
                less = leave_out_token(op, at, name)
                yield [*ops[:place], less, *map(shorten_pass, ops[place + 1 :])]
                yield [*ops[:place], less, *ops[place + 1 :]]
    used = sorted({token for op in ops for token in list_tokens(op)})
    for token in used:
        for other in dict.fromkeys((1, *used[:MOST_OTHERS])):
            if other != token:
                yield [rename_token(op, {token: other}) for op in ops]


def list_fewer(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One request fewer, what it computed left to the next; one operation fewer."""
    for begin, end in list_requests(ops):
        yield [*ops[:begin], *grow_pass(ops[end + 1 :], count_fed(ops[begin:end]))]
    for place in range(len(ops)):
        yield [*ops[:place], *ops[place + 1 :]]


def list_requests(ops: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """Where each request of the first user begins and ends, if nothing comes between."""
    begin = None
    for place, op in enumerate(ops):
        if op["op"] == "begin":
            begin = place
        if op["op"] in ("close", "cancel") and begin is not None:
            yield begin, place
            begin = None


def ask_at_once(ops: Sequence[Op]) -> list[Op] | None:
    """The same request with the tokens that were generated in it, computed in one pass;
    None if none were."""
    generated = [token for op in ops for token in op.get("generate", ())]
    others = [op for op in ops[1:] if op["op"] != "feed"]
    tokens = [*ops[0]["tokens"], *generated]
    if not generated or len(tokens) > MAX_LENGTH:
        return None
    count = count_fed(ops)
    begin = {**ops[0], "tokens": tokens}
    feed = {"op": "feed", "user": ops[0]["user"], "count": count, "generate": []}
    return [begin, *([feed] if count else []), *others]


def count_fed(ops: Sequence[Op]) -> int:
    fed: int = sum(op["count"] for op in ops if op["op"] == "feed")
    return min(MAX_LENGTH, fed)


def grow_pass(ops: Sequence[Op], more: int) -> list[Op]:
    """The first pass computes more tokens."""
    place = next((n for n, op in enumerate(ops) if op["op"] in ("feed", "break")), None)
    if place is None:
        return list(ops)
    longer = {**ops[place], "count": min(MAX_LENGTH, ops[place]["count"] + more)}
    return [*ops[:place], longer, *ops[place + 1 :]]


def leave_out_token(op: Op, place: int, name: str = "tokens") -> Op:
    tokens = op.get(name, ())
    if place >= len(tokens):
        return op
    return {**op, name: [*tokens[:place], *tokens[place + 1 :]]}


def shorten_pass(op: Op) -> Op:
    if op["op"] in ("feed", "break") and op["count"] > 1:
        return {**op, "count": op["count"] - 1}
    return op


def list_tokens(op: Op) -> list[int]:
    """The tokens that an operation names; not what only looks like one."""
    named = [token for name in LISTS for token in op.get(name, ())]
    return [token for token in named if type(token) is int and token >= 0]


def rename_token(op: Op, names: Mapping[int, int]) -> Op:
    lists = {
        name: [names.get(token, token) if type(token) is int else token for token in held]
        for name in LISTS
        if (held := op.get(name))
    }
    return {**op, **lists}


def simplify_config(
    config: Mapping[str, Any], ops: Sequence[Op]
) -> Iterator[tuple[Mapping[str, Any], Sequence[Op]]]:
    """A layer fewer, the operations that name layers along with it; a plain one in its
    place; smaller windows. Plain dimensions, the limits in proportion; captures at every
    token in the place of a request; lower limits, one token fewer along with them."""
    for layers, place in list_simpler_layers(config):
        kept = ops if place is None else [lose_layer(op, place) for op in ops]
        simpler = {**config, "layers": layers}
        yield scale_limits(config, simpler, kept)
        yield simpler, kept
    for name, plain in PLAIN.items():
        if config[name] != plain:
            yield scale_limits(config, {**config, name: plain}, ops)
    if config["kind"] == "trie":
        if config["interval"] is None:
            captured = {**config, "interval": 1}
            for fewer in list_fewer(ops):
                yield captured, fewer
                yield from list_lower_limits(captured, fewer, lambda ops: ())
        yield from list_first_limits(config, ops)
        yield from list_tight_limits(config, ops, list_fewer)
        yield from list_lower_limits(config, ops, simplify)


PLAIN = {"dtype": "float32", "heads": 1, "key_dim": 4, "value_dim": 4, "conv_width": 4}


def list_simpler_layers(
    config: Mapping[str, Any],
) -> Iterator[tuple[list[str | None], int | None]]:
    """Layers, and the place of the one that is gone; None if none is."""
    layers = config["layers"]
    plain = "causal" if config["kind"] == "slots" else "kv"
    for place, spec in enumerate(layers):
        before, after = layers[:place], layers[place + 1 :]
        if len(layers) > 1:
            yield [*before, *after], place
        if spec != plain:
            yield [*before, plain, *after], None
        name, *sizes = (spec or "").split(":")
        for size in range(1, int(sizes[0]) if sizes else 0):
            yield [*before, ":".join((name, str(size), *sizes[1:])), *after], None


def lose_layer(op: Op, place: int) -> Op:
    """The operation for a model without the layer in this place."""
    if op["op"] == "refuse":
        kept = [number - (number > place) for number in op["layers"] if number != place]
        return {**op, "layers": kept}
    if op["op"] == "break" and op["layers"] > place:
        return {**op, "layers": op["layers"] - 1}
    return op


def rename(ops: Sequence[Op]) -> list[Op]:
    """Tokens in the order of their appearance, from 1 on; users a, b, c."""
    tokens, users = dict[int, int](), dict[str, str]()
    for op in ops:
        for token in list_tokens(op):
            tokens.setdefault(token, len(tokens) + 1)
        if "user" in op:
            users.setdefault(op["user"], chr(ord("a") + len(users)))
    renamed = [rename_token(op, tokens) for op in ops]
    return [{**op, "user": users[op["user"]]} if "user" in op else op for op in renamed]
