"""Defines the layer contract's small domains: 2 caches, 2 snapshots, a window of 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, read_moves

TINY = read_moves(
    "update length=1 cache=a; update length=3 cache=a; trim count=1; state;"
    " clone cache=a into=b; update length=1 cache=b;"
    " snapshot from=0 into=s0 cache=a; restore snapshot=s0 target=1 cache=a"
)
SMALL = TINY + read_moves(
    "clone cache=b into=a; free; snapshot from=1 into=s1 cache=a;"
    " restore snapshot=s1 target=2 cache=a; restore snapshot=null target=1 cache=a;"
    " split snapshot=s0 at=1 parent=s0 child=s1; merge parent=s0 child=s1 into=s0;"
    ' close snapshot=s0; prepare offsets=[2]; take into=["s1"]'
)
STANDARD = SMALL + read_moves(
    "update length=2 cache=a; update length=4 cache=b; trim count=3;"
    " trim count=1 cache=b; view; size; state cache=b; free cache=b;"
    " snapshot from=0 into=s1 cache=b; restore snapshot=s0 target=3 cache=a;"
    " restore snapshot=s0 target=2 cache=b; restore snapshot=null target=0 cache=b;"
    " split snapshot=s1 at=2 parent=s0 child=s1; merge parent=s0 child=null into=s0;"
    ' close snapshot=s1; prepare offsets=[1,3]; take into=["s0","s1"]'
)
CONFIG: Mapping[str, Sequence[Any]] = {"step": [2], "window": [2], "chunk": [None, 2]}
LARGER = {**CONFIG, "window": [3, 4], "heads": [2], "value_dim": [6]}
DOMAINS = {
    "tiny": Domain(CONFIG, TINY),
    "small": Domain(CONFIG, SMALL),
    "standard": Domain(LARGER, STANDARD),
}
"""The domains have no renamings: each snapshot has different moves, and cache a exists
from the start."""


def get_domain(kind: str, size: str) -> Domain:
    return DOMAINS[size]
