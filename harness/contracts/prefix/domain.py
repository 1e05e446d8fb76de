"""Defines the small domains of the prefix contract: two tokens, two layers, two users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, Renaming, read_moves
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.prefix.rewrites import rename_token

Choices = Mapping[str, Sequence[Any]]

CONVERSATION: Choices = {"layers": [["kv", "rotating:2"]], "step": [2]}

CONFIGS: Mapping[str, Choices] = {
    "session": CONVERSATION,
    "trie": CONVERSATION,
    "slots": {"layers": [["causal"]], "slots": [2], "context": [4]},
}


def read_of_user(text: str) -> tuple[Op, ...]:
    """Parses a text of operations, all of user "a". A `feed` without `generate` generates
    no tokens."""
    plain: Mapping[str, Op] = {"feed": {"generate": []}}
    moves = read_moves(text)
    return tuple({**plain.get(move["op"], {}), **move, "user": "a"} for move in moves)


def double(moves: Sequence[Op]) -> tuple[Op, ...]:
    """Returns the moves of user a, and the same moves for user b."""
    return (*moves, *({**move, "user": "b"} for move in moves))


CLOSE = read_of_user("close")
SHORT = read_of_user("begin tokens=[1,2]; begin tokens=[2,1]")
LONG = read_of_user("begin tokens=[1,2,1]; begin tokens=[2,1,2]")
# Every request has fewer than 8 tokens: such a pass computes all remaining tokens.
FEEDS = read_of_user("feed count=8 generate=[1]; feed count=8 generate=[2]")
TINY = (*SHORT, *LONG, *read_of_user("feed count=1; feed count=8"), *FEEDS, *CLOSE)
SMALL = (
    *TINY,
    *read_of_user("cancel; break count=1 layers=0; break count=2 layers=1"),
    *read_moves(
        "refuse layers=[0] raising=false; refuse layers=[0,1] raising=true; count; free;"
        " checkpoint offsets=[1]; checkpoint offsets=[2]; limit bytes=128;"
        " limit bytes=null"
    ),
)
"""A session keeps one path and has no limit: a backend leaves out the moves that its kind
does not have."""

TINY_SLOTS = double((*SHORT, *read_of_user("feed count=8"), *CLOSE))
SMALL_SLOTS = (
    *TINY_SLOTS,
    *double((*LONG, *read_of_user("feed count=1"), *FEEDS)),
    *double(read_of_user("cancel; break count=1 layers=0")),
    *read_moves("refuse layers=[] raising=false"),
)
MOVES = {"tiny": TINY, "small": SMALL}
SLOTS_MOVES = {"tiny": TINY_SLOTS, "small": SMALL_SLOTS}

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
    moves = SLOTS_MOVES if kind == "slots" else MOVES
    return Domain(CONFIGS[kind], moves[size], RENAMINGS)
