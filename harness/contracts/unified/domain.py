"""Defines the small domains of the unified contract.

They have two sequences, a window of two, and passes of up to three rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from lockstep.harness.contracts.contract import Domain, read_moves
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.unified.model import CAUSAL
from lockstep.harness.contracts.unified.operations import rename_owner

CONFIG: Mapping[str, Sequence[Any]] = {
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


def exchange(op: Op) -> Op:
    return rename_owner(op, {0: 1, 1: 0})


def read_for_both(text: str) -> tuple[Op, ...]:
    """Parses moves of sequence 0, and adds each move again for sequence 1."""
    pairs = ((move, exchange(move)) for move in read_moves(text))
    return tuple(chain.from_iterable(pairs))


TINY = read_for_both(
    "forward sequences=[0]; forward sequences=[0,0];"
    " copy_prefix source=0 target=1 length=1; remove sequence=0 begin=0 end=1"
)
SMALL = TINY + read_for_both(
    "forward sequences=[0,1]; remove sequence=0 begin=1 end=null"
)
LONGER = read_for_both("copy_prefix source=0 target=1 length=2")
QUESTIONS = read_for_both("can_resume sequence=0 position=2")
SAVED = read_moves("save into=x; load from=x")
IMAGES = read_for_both(
    "forward sequences=[0] multimodal=[0]; forward sequences=[0,1] multimodal=[1];"
    " forward sequences=[0] reserve=true"
)
"""A backend leaves out the moves that its kind does not have."""

MOVES = {"tiny": TINY, "small": SMALL}


def get_domain(kind: str, size: str) -> Domain:
    moves = MOVES[size]
    if kind == "encoder":
        moves += IMAGES
    elif size == "small":
        moves += QUESTIONS + (SAVED if kind in CAUSAL else LONGER)
    return Domain(CONFIG, moves, [exchange])
