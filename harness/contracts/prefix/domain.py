"""The small worlds of the prefix contract: two tokens, two layers, two users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, Renaming, join
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.prefix.shrinking import rename_token

ALL = 8
"""More tokens than a request has: a pass computes those that remain."""

Choices = Mapping[str, Sequence[Any]]

CONVERSATION: Choices = {"layers": [["kv", "rotating:2"]], "step": [2]}
DEEP: Choices = {"layers": [["rotating:3", None, "kv", "state"]], "step": [2]}

CONFIGS: Mapping[str, Choices] = {
    "session": CONVERSATION,
    "trie": CONVERSATION,
    "slots": {"layers": [["causal"]], "slots": [2], "context": [4]},
}
LARGER: Mapping[str, Choices] = {
    "session": {**DEEP, "heads": [2]},
    "trie": {**DEEP, "interval": [2]},
    "slots": {"layers": [["causal", "swa:3"]], "slots": [2], "context": [5], "keep": [1]},
}


def begin(*tokens: int) -> Op:
    return {"op": "begin", "tokens": [*tokens], "user": "a"}


def feed(count: int, *generated: int) -> Op:
    return {"op": "feed", "count": count, "generate": [*generated], "user": "a"}


def break_off(count: int, layers: int) -> Op:
    return {"op": "break", "count": count, "layers": layers, "user": "a"}


def refuse(*layers: int, raising: bool = False) -> Op:
    return {"op": "refuse", "layers": [*layers], "raising": raising}


def checkpoint(*offsets: int) -> Op:
    return {"op": "checkpoint", "offsets": [*offsets]}


def limit(size: int | None) -> Op:
    return {"op": "limit", "bytes": size}


def for_both(*moves: Op) -> tuple[Op, ...]:
    """Each move of user a, and the same of user b."""
    return join(moves, [{**move, "user": "b"} for move in moves])


CLOSE: Op = {"op": "close", "user": "a"}
CANCEL: Op = {"op": "cancel", "user": "a"}
SHORT = begin(1, 2), begin(2, 1)
LONG = begin(1, 2, 1), begin(2, 1, 2)
OTHERS = begin(1), begin(2), begin(1, 1, 2, 2), begin(2, 2, 1, 1)

TINY: Sequence[Op] = join(
    SHORT, LONG, (feed(1), feed(ALL), feed(ALL, 1), feed(ALL, 2), CLOSE)
)
SMALL: Sequence[Op] = join(
    TINY,
    (CANCEL, break_off(1, 0), break_off(2, 1), refuse(0), refuse(0, 1, raising=True)),
    ({"op": "count"}, {"op": "free"}, checkpoint(1), checkpoint(2)),
    (limit(128), limit(None)),
)
STANDARD: Sequence[Op] = join(
    SMALL,
    OTHERS,
    (feed(0, 1), feed(0, 2), feed(2), break_off(1, 2), refuse(2), checkpoint(1, 3)),
    (limit(0), limit(256)),
)
"""A session keeps one path and has no limit: `fit` leaves out what it does not have."""

TINY_SLOTS: Sequence[Op] = for_both(*SHORT, feed(ALL), CLOSE)
SMALL_SLOTS: Sequence[Op] = join(
    TINY_SLOTS,
    for_both(*LONG, feed(1), feed(ALL, 1), feed(ALL, 2)),
    for_both(CANCEL, break_off(1, 0)),
    (refuse(),),
)
MORE_FEEDS = feed(2, 1, 2), feed(2, 2, 1), feed(0, 1), feed(0, 2)
STANDARD_SLOTS: Sequence[Op] = join(
    SMALL_SLOTS, for_both(*OTHERS, *MORE_FEEDS, break_off(2, 1))
)
MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}
SLOTS_MOVES = {"tiny": TINY_SLOTS, "small": SMALL_SLOTS, "standard": STANDARD_SLOTS}

USERS = {"a": "b", "b": "a"}


def exchange_tokens(op: Op) -> Op:
    return rename_token(op, {1: 2, 2: 1})


def exchange_users(op: Op) -> Op:
    return {**op, "user": USERS[op["user"]]} if "user" in op else op


RENAMINGS: Sequence[Renaming] = (
    exchange_tokens,
    exchange_users,
    lambda op: exchange_tokens(exchange_users(op)),
)


def get_domain(kind: str, size: str) -> Domain:
    config = LARGER if size == "standard" else CONFIGS
    moves = SLOTS_MOVES if kind == "slots" else MOVES
    return Domain(config[kind], moves[size], RENAMINGS)
