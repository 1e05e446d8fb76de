"""Defines the batched contract's small domains: 2 batches of 2 rows, a window of 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.batched.model import LIST
from lockstep.harness.contracts.contract import Domain, read_moves

TINY = read_moves(
    "open rows=2 cache=a; update length=1 left=null cache=a;"
    " update length=3 left=[0,2] cache=a; pad_right lengths=[1,2];"
    " update length=2 left=null cache=a; finalize; trim count=1; filter rows=[1]; state"
)
SMALL = TINY + read_moves(
    "open rows=1 cache=b; update length=2 left=null cache=b; extend other=b;"
    ' extract row=0 into=c; stack caches=["c"] cache=b;'
    " update length=1 left=null cache=c; rollback counts=[0,1]; repeat times=2"
)
STANDARD = SMALL + read_moves(
    "update length=1 left=null cache=b; filter rows=[1,0]; select rows=[0,0];"
    " open rows=1 cache=a; save into=s; load from=s cache=b; clone into=b;"
    " extend other=a cache=b; free; size"
)
PAIR = [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 2}]
WITH_STATE = [{"kind": "batch-state"}, {"kind": "batch-rotating", "window": 3}]
CONFIG: Mapping[str, Sequence[Any]] = {
    "step": [2],
    "window": [2],
    "chunk": [None, 2],
    "caches": [PAIR],
}
LARGER = {
    **CONFIG,
    "window": [3, 4],
    "heads": [2],
    "value_dim": [6],
    "caches": [WITH_STATE],
}
DOMAINS = {
    "tiny": Domain(CONFIG, TINY),
    "small": Domain(CONFIG, SMALL),
    "standard": Domain(LARGER, STANDARD),
}


def get_domain(kind: str, size: str) -> Domain:
    domain = DOMAINS[size]
    if kind != LIST:
        return domain
    moves = [move for move in domain.moves if move["op"] != "size"]  # states have no size
    return Domain(domain.config, moves)
