"""Yields simpler prefix programs: fewer tokens, fewer distinct tokens, simpler configs.

A limit in bytes shrinks together with the tokens. With an unchanged limit, fewer or
smaller tokens would fit, although the original tokens did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.prefix.model import get_token_bytes
from lockstep.harness.contracts.rewrites import Changed, Rewrite, find, replace_at
from lockstep.harness.core.document import MAX_LENGTH

LISTS = ("tokens", "generate")
PASSES = ("feed", "break")
MOST_TRIED = 5
"""The maximum number of tokens that are tried as a replacement for a token."""


def merge_feeds(first: Op, second: Op) -> Op | None:
    """Merges two consecutive passes of one user, if the first generated no tokens."""
    same = first["op"] == second["op"] == "feed" and first["user"] == second["user"]
    count = first.get("count", 0) + second.get("count", 0)
    if not same or first["generate"] or count > MAX_LENGTH:
        return None
    return {**second, "count": count}


def simplify_requests(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs with a simpler request.

    Removes a request, so that the next request computes its tokens, or moves the
    generated tokens of a request into its `begin`.
    """
    for begin, end in list_requests(ops):
        yield drop_request(ops, begin, end)
        request = ask_at_once(ops[begin:end])
        if request is not None:
            yield [*ops[:begin], *request, *ops[end:]]


def close_cancelled(ops: Sequence[Op]) -> Iterator[list[Op]]:
    for index, op in find(ops, "cancel"):
        yield replace_at(ops, index, {**op, "op": "close"})


def drop_tokens(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs without the token at one index of all requests, or without one
    token of one list."""
    longest = max((len(op["tokens"]) for _, op in find(ops, "begin")), default=0)
    for position in range(longest):
        shorter = [leave_out_token(op, position) for op in ops]
        if all(op.get("tokens", [0]) for op in shorter):
            yield [shorten_pass(op) for op in shorter]
            yield shorter
    for index, op in enumerate(ops):
        for name in LISTS:
            for at in range(len(op.get(name, ()))):
                less = leave_out_token(op, at, name)
                yield [*ops[:index], less, *map(shorten_pass, ops[index + 1 :])]
                yield replace_at(ops, index, less)


def replace_tokens(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Replaces one token by another everywhere."""
    used = sorted({token for op in ops for token in list_tokens(op)})
    for token in used:
        for new in dict.fromkeys((1, *used[:MOST_TRIED])):
            if new != token:
                yield [rename_token(op, {token: new}) for op in ops]


REWRITES: Sequence[Rewrite] = (
    simplify_requests,
    close_cancelled,
    drop_tokens,
    replace_tokens,
)


def simplify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    return chain.from_iterable(rewrite(ops) for rewrite in REWRITES)


def list_fewer(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yields programs without one request, and programs without one operation.

    The request after a removed request also computes the removed request's tokens.
    """
    for begin, end in list_requests(ops):
        yield drop_request(ops, begin, end)
    for position in range(len(ops)):
        yield replace_at(ops, position)


def drop_request(ops: Sequence[Op], begin: int, end: int) -> list[Op]:
    """Drops the operations [begin, end]; the next pass also computes their tokens."""
    later, fed = ops[end + 1 :], count_fed(ops[begin:end])
    position = next((n for n, op in enumerate(later) if op["op"] in PASSES), None)
    if position is None:
        return [*ops[:begin], *later]
    longer = {**later[position], "count": min(MAX_LENGTH, later[position]["count"] + fed)}
    return [*ops[:begin], *replace_at(later, position, longer)]


def list_requests(ops: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """Yields the indices of each `begin` and of the `close` or `cancel` after it."""
    begin = None
    for position, op in enumerate(ops):
        if op["op"] == "begin":
            begin = position
        if op["op"] in ("close", "cancel") and begin is not None:
            yield begin, position
            begin = None


def ask_at_once(ops: Sequence[Op]) -> list[Op] | None:
    """Moves the generated tokens of a request into its begin; one pass computes them.

    Returns:
        The operations of the request; None if no tokens were generated, or if there would
        be too many tokens.
    """
    generated = [token for op in ops for token in op.get("generate", ())]
    remaining = [op for op in ops[1:] if op["op"] != "feed"]
    tokens = [*ops[0]["tokens"], *generated]
    if not generated or len(tokens) > MAX_LENGTH:
        return None
    count = count_fed(ops)
    begin = {**ops[0], "tokens": tokens}
    feed = {"op": "feed", "user": ops[0]["user"], "count": count, "generate": []}
    return [begin, *([feed] if count else []), *remaining]


def count_fed(ops: Sequence[Op]) -> int:
    fed: int = sum(op["count"] for op in ops if op["op"] == "feed")
    return min(MAX_LENGTH, fed)


def leave_out_token(op: Op, position: int, name: str = "tokens") -> Op:
    tokens = op.get(name, ())
    if position >= len(tokens):
        return op
    return {**op, name: replace_at(tokens, position)}


def shorten_pass(op: Op) -> Op:
    if op["op"] in PASSES and op["count"] > 1:
        return {**op, "count": op["count"] - 1}
    return op


def list_tokens(op: Op) -> list[int]:
    """Lists the valid tokens in the fields of an operation."""
    named = [token for name in LISTS for token in op.get(name, ())]
    return [token for token in named if type(token) is int and token >= 0]


def rename_token(op: Op, names: Mapping[int, int]) -> Op:
    lists = {
        name: [
            names.get(token, token) if type(token) is int else token
            for token in tokens_held
        ]
        for name in LISTS
        if (tokens_held := op.get(name))
    }
    return {**op, **lists}


# --- the config, and the limits along with it -------------------------------------------

Propose = Callable[[Sequence[Op]], Iterable[list[Op]]]
"""Lists simpler operations."""
Weigh = Callable[[Config, Sequence[Op]], int]
"""Counts the bytes that are stored after some operations."""


def simplify_config(config: Config, ops: Sequence[Op], weigh: Weigh) -> Iterator[Changed]:
    """Yields simpler configs with the operations that fit them.

    The steps:

    * remove a layer, also from operations that name layers;
    * replace a layer by a layer with full attention;
    * make windows smaller;
    * use default dimensions, with limits in proportion;
    * capture at every token, and remove a request or an operation;
    * lower limits, with or without simpler operations.

    Args:
        config: a complete config.
        ops: the operations.
        weigh: counts the bytes that are stored after some operations.
    """
    for layers, position in list_simpler_layers(config):
        kept_ops = ops if position is None else [lose_layer(op, position) for op in ops]
        simpler = {**config, "layers": layers}
        yield scale_limits(config, simpler, kept_ops)
        yield simpler, kept_ops
    for name, plain in PLAIN.items():
        if config[name] != plain:
            yield scale_limits(config, {**config, name: plain}, ops)
    if config["kind"] == "trie":
        if config["interval"] is None:
            captured = {**config, "interval": 1}
            for fewer in list_fewer(ops):
                yield captured, fewer
                yield from list_lower_limits(captured, fewer, lambda ops: ())
        yield from list_other_limits(config, ops, weigh)
        yield from list_lower_limits(config, ops, simplify)


def change_limits(
    config: Config, ops: Sequence[Op], change: Callable[[int], int]
) -> Changed:
    """Changes the limits in the config and in the operations; does nothing without
    limits."""
    limit = config["limit"]
    changed = [
        {**op, "bytes": change(op["bytes"])} if op.get("bytes") is not None else op
        for op in ops
    ]
    return {**config, "limit": limit if limit is None else change(limit)}, changed


def scale_limits(old: Config, new: Config, ops: Sequence[Op]) -> Changed:
    """Scales limits, so that the same number of tokens fits in the new config."""
    if old["kind"] != "trie":
        return new, ops
    earlier, after = max(1, get_token_bytes(old)), get_token_bytes(new)
    return change_limits(new, ops, lambda limit: limit * after // earlier)


def list_other_limits(
    config: Config, ops: Sequence[Op], weigh: Weigh
) -> Iterator[Changed]:
    """Yields programs with other limits.

    First, yields programs in which a limit applies from the start. Then, yields programs
    with fewer operations before a limit, and a limit that is one byte less than the size
    of the content stored by these operations.
    """
    places = [position for position, op in enumerate(ops) if op["op"] == "limit"]
    for position in places:
        yield {**config, "limit": ops[position]["bytes"]}, replace_at(ops, position)
    for position in places:
        for earlier in list_fewer(ops[:position]):
            tight = {**ops[position], "bytes": max(0, weigh(config, earlier) - 1)}
            yield config, [*earlier, tight, *ops[position + 1 :]]


def list_lower_limits(
    config: Config, ops: Sequence[Op], propose: Propose
) -> Iterator[Changed]:
    """Yields programs with lower limits, and the same programs with the operations of
    `propose`."""
    if config["limit"] is None and not any(op.get("bytes") for op in ops):
        return
    unit = max(1, get_token_bytes(config))
    for less in (unit, unit // 2, 2 * unit):
        lower = partial(lower_by, less)
        yield change_limits(config, ops, lower)
        for shorter in propose(ops):
            yield change_limits(config, shorter, lower)


def lower_by(less: int, limit: int) -> int:
    return max(0, limit - less)


PLAIN = {"dtype": "float32", "heads": 1, "key_dim": 4, "value_dim": 4, "conv_width": 4}


def list_simpler_layers(config: Config) -> Iterator[tuple[list[str | None], int | None]]:
    """Yields (simpler layers, index of the removed layer or None)."""
    layers = config["layers"]
    plain = "causal" if config["kind"] == "slots" else "kv"
    for position, spec in enumerate(layers):
        earlier, after = layers[:position], layers[position + 1 :]
        if len(layers) > 1:
            yield [*earlier, *after], position
        if spec != plain:
            yield [*earlier, plain, *after], None
        name, *sizes = (spec or "").split(":")
        for size in range(1, int(sizes[0]) if sizes else 0):
            yield [*earlier, ":".join((name, str(size), *sizes[1:])), *after], None


def lose_layer(op: Op, position: int) -> Op:
    """Changes an operation for a model without the layer at this index."""
    if op["op"] == "refuse":
        kept_ops = [
            number - (number > position) for number in op["layers"] if number != position
        ]
        return {**op, "layers": kept_ops}
    if op["op"] == "break" and op["layers"] > position:
        return {**op, "layers": op["layers"] - 1}
    return op


def rename(ops: Sequence[Op]) -> list[Op]:
    """Renames tokens to 1, 2, 3 and users to a, b, c in the order of appearance."""
    tokens, users = dict[int, int](), dict[str, str]()
    for op in ops:
        for token in list_tokens(op):
            tokens.setdefault(token, len(tokens) + 1)
        if "user" in op:
            users.setdefault(op["user"], chr(ord("a") + len(users)))
    renamed = [rename_token(op, tokens) for op in ops]
    return [{**op, "user": users[op["user"]]} if "user" in op else op for op in renamed]
