"""The small worlds of the paged contract: two requests, blocks of two tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, join
from lockstep.harness.contracts.operation import Op

GROUPS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "paged-full": [{"type": "full", "block": 2, "layers": 1}],
    "paged-sliding": [{"type": "sliding", "block": 2, "width": 3, "layers": 1}],
    "paged-chunked": [{"type": "chunked", "block": 2, "width": 4, "layers": 1}],
    "paged-state": [{"type": "state", "block": 2, "layers": 1}],
    "paged-hybrid": [
        {"type": "full", "block": 2, "layers": 1},
        {"type": "sliding", "block": 2, "width": 2, "layers": 1},
    ],
}


def open_request(name: str, *tokens: int) -> Op:
    return {"op": "open", "request": name, "tokens": list(tokens)}


def ask(name: str, op: str, **fields: Any) -> Op:
    return {"op": op, "request": name, **fields}


RUN: Op = {"op": "run"}
TINY: Sequence[Op] = (
    open_request("a", 1, 1, 1),
    open_request("b", 1, 1, 2),
    ask("a", "schedule", count=9),
    ask("b", "schedule", count=9),
    RUN,
    ask("a", "accept", sampled=1),
    ask("a", "free"),
    {"op": "evict", "count": 1},
)
SMALL: Sequence[Op] = join(
    TINY,
    (
        ask("b", "accept", sampled=2),
        ask("a", "schedule", count=1),
        ask("a", "preempt"),
        ask("b", "free", reuse=False),
        ask("b", "preempt"),
        {"op": "fork", "source": "a", "target": "c", "tokens": [2]},
        ask("a", "rewind", to=1, tokens=[2]),
        {"op": "reset"},
    ),
)
STANDARD: Sequence[Op] = join(
    SMALL,
    (
        open_request("a", 1, 1, 1, 1, 2),
        {"op": "open", "request": "b", "tokens": [1, 1, 1], "namespace": "x"},
        ask("a", "match"),
        ask("c", "schedule", count=2),
        ask("b", "schedule", count=1),
        ask("c", "free"),
        {"op": "evict", "count": 256},
        ask("a", "accept", sampled=2),
        ask("a", "offload", transfer="t0"),
        ask("b", "load", transfer="t1"),
        {"op": "landed", "transfer": "t0"},
        {"op": "landed", "transfer": "t1"},
        {"op": "failed", "transfer": "t1", "arrived": 1},
        {"op": "save"},
        {"op": "restore"},
    ),
)
MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}
BLOCKS = {"tiny": 6, "small": 6, "standard": 5}


def get_domain(kind: str, size: str) -> Domain:
    config: Mapping[str, Sequence[Any]]
    config = {"groups": [GROUPS[kind]], "blocks": [BLOCKS[size]], "max_length": [8]}
    if size == "standard":
        config = {**config, "host": [4]}
    return Domain(config, MOVES[size])
