"""The small worlds of the layer contract: two caches, two snapshots, a window of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, join
from lockstep.harness.contracts.operation import Op


def update(length: int, cache: str = "a") -> Op:
    return {"op": "update", "length": length, "cache": cache}


def clone(cache: str, into: str) -> Op:
    return {"op": "clone", "into": into, "cache": cache}


def snapshot(begin: int, into: str, cache: str = "a") -> Op:
    return {"op": "snapshot", "from": begin, "into": into, "cache": cache}


def restore(name: str | None, target: int, cache: str = "a") -> Op:
    return {"op": "restore", "snapshot": name, "target": target, "cache": cache}


def split(name: str, at: int) -> Op:
    return {"op": "split", "snapshot": name, "at": at, "parent": "s0", "child": "s1"}


def merge(parent: str | None, child: str | None) -> Op:
    return {"op": "merge", "parent": parent, "child": child, "into": "s0"}


def take(*names: str) -> Op:
    return {"op": "take", "into": list(names)}


TINY: Sequence[Op] = (
    update(1),
    update(3),
    {"op": "trim", "count": 1},
    {"op": "state"},
    clone("a", "b"),
    update(1, "b"),
    snapshot(0, "s0"),
    restore("s0", 1),
)
SMALL: Sequence[Op] = join(
    TINY,
    (
        clone("b", "a"),
        {"op": "free"},
        snapshot(1, "s1"),
        restore("s1", 2),
        restore(None, 1),
        split("s0", 1),
        merge("s0", "s1"),
        {"op": "close", "snapshot": "s0"},
        {"op": "prepare", "offsets": [2]},
        take("s1"),
    ),
)
STANDARD: Sequence[Op] = join(
    SMALL,
    (
        update(2),
        update(4, "b"),
        {"op": "trim", "count": 3},
        {"op": "trim", "count": 1, "cache": "b"},
        {"op": "view"},
        {"op": "size"},
        {"op": "state", "cache": "b"},
        {"op": "free", "cache": "b"},
        snapshot(0, "s1", "b"),
        restore("s0", 3),
        restore("s0", 2, "b"),
        restore(None, 0, "b"),
        split("s1", 2),
        merge("s0", None),
        {"op": "close", "snapshot": "s1"},
        {"op": "prepare", "offsets": [1, 3]},
        take("s0", "s1"),
    ),
)
CONFIG: Mapping[str, Sequence[Any]] = {"step": [2], "window": [2], "chunk": [None, 2]}
LARGER = {**CONFIG, "window": [3, 4], "heads": [2], "value_dim": [6]}
DOMAINS = {
    "tiny": Domain(CONFIG, TINY),
    "small": Domain(CONFIG, SMALL),
    "standard": Domain(LARGER, STANDARD),
}
"""No two names are exchanged: each snapshot has moves of its own, and cache a is there
from the start."""


def get_domain(kind: str, size: str) -> Domain:
    return DOMAINS[size]
