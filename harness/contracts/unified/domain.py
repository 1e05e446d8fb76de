"""The small worlds of the unified contract: two sequences, a window of two, a capacity of
four, passes of up to three rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, Renaming, join
from lockstep.harness.contracts.operation import Op, rename
from lockstep.harness.contracts.unified.model import CAUSAL
from lockstep.harness.contracts.unified.operations import OPERATIONS

SMALL_CONFIG: Mapping[str, Sequence[Any]] = {
    "window": [2],
    "memory": [3],
    "chunk": [2],
    "sequences": [2],
    "capacity": [4],
    "batch": [3],
    "caches": [[{"kind": "causal"}, {"kind": "swa", "window": 2}]],
    "interval": [2],
    "checkpoints": [2],
}
LARGER_CONFIG: Mapping[str, Sequence[Any]] = {
    **SMALL_CONFIG,
    "window": [3],
    "memory": [4],
    "chunk": [3],
    "sequences": [3],
    "batch": [4],
    "layers": [2],
    "heads": [2],
    "cache_padding": [2],
    "mask_padding": [4],
}


def forward(*sequences: int, **fields: Any) -> Op:
    """Makes a pass with a row for each of these, at the next free positions."""
    return {"op": "forward", "sequences": list(sequences), **fields}


def copy(source: int, target: int, length: int) -> Op:
    return {"op": "copy_prefix", "source": source, "target": target, "length": length}


def remove(sequence: int, begin: int, end: int | None) -> Op:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


def resume(sequence: int, position: int) -> Op:
    return {"op": "can_resume", "sequence": sequence, "position": position}


def for_both(*moves: Op) -> tuple[Op, ...]:
    """Lists each move of sequence 0, and the same of sequence 1."""
    pairs = ((move, rename(move, OPERATIONS, "sequence", {0: 1, 1: 0})) for move in moves)
    return join(*pairs)


TINY: Sequence[Op] = for_both(forward(0), forward(0, 0), copy(0, 1, 1), remove(0, 0, 1))
SMALL: Sequence[Op] = join(TINY, for_both(forward(0, 1), remove(0, 1, None)))
LONGER: Sequence[Op] = for_both(copy(0, 1, 2))
QUESTIONS: Sequence[Op] = for_both(resume(0, 2))
SAVED: Sequence[Op] = ({"op": "save", "into": "x"}, {"op": "load", "from": "x"})
IMAGES: Sequence[Op] = for_both(
    forward(0, multimodal=[0]), forward(0, 1, multimodal=[1]), forward(0, reserve=True)
)
STANDARD: Sequence[Op] = join(
    SMALL,
    LONGER,
    QUESTIONS,
    SAVED,
    for_both(
        forward(0, 0, 0),
        forward(0, 0, 1),
        forward(0, 0, **{"except": [0]}),
        forward(0, 0, reserve=True),
        remove(0, 0, None),
        remove(0, 1, 2),
        resume(0, 1),
    ),
    (copy(0, 2, 2), forward(2), forward(2, 0, 1), remove(2, 0, 1), {"op": "get"}),
    ({"op": "load", "from": "x", "fresh": True},),
    ({"op": "open", "window": 3, "memory": 4},),
)
"""Moves that a kind does not have are left out: only causal caches can be saved, only
swa-memory is opened with two sizes."""

MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}


def exchange(first: int, second: int) -> Renaming:
    return lambda op: dict(
        rename(op, OPERATIONS, "sequence", {first: second, second: first})
    )


def get_domain(kind: str, size: str) -> Domain:
    config = LARGER_CONFIG if size == "standard" else SMALL_CONFIG
    moves = MOVES[size]
    if kind == "encoder":
        moves = join(moves, IMAGES)
    elif size == "small":
        moves = join(moves, QUESTIONS, SAVED if kind in CAUSAL else LONGER)
    pairs = [(0, 1), (0, 2), (1, 2)]
    return Domain(config, moves, [exchange(*pair) for pair in pairs])
