"""The small worlds of the batched contract: two batches of two rows, a window of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.batched.model import LIST
from lockstep.harness.contracts.contract import Domain, join
from lockstep.harness.contracts.operation import Op


def open_batch(rows: int, cache: str = "a") -> Op:
    return {"op": "open", "rows": rows, "cache": cache}


def update(length: int, cache: str = "a", left: Sequence[int] | None = None) -> Op:
    return {"op": "update", "length": length, "left": left, "cache": cache}


def keep(*rows: int) -> Op:
    return {"op": "filter", "rows": list(rows)}


TINY: Sequence[Op] = (
    open_batch(2),
    update(1),
    update(3, left=[0, 2]),
    {"op": "pad_right", "lengths": [1, 2]},
    update(2),
    {"op": "finalize"},
    {"op": "trim", "count": 1},
    keep(1),
    {"op": "state"},
)
SMALL: Sequence[Op] = join(
    TINY,
    (
        open_batch(1, "b"),
        update(2, "b"),
        {"op": "extend", "other": "b"},
        {"op": "extract", "row": 0, "into": "c"},
        {"op": "stack", "caches": ["c"], "cache": "b"},
        update(1, "c"),
        {"op": "rollback", "counts": [0, 1]},
        {"op": "repeat", "times": 2},
    ),
)
STANDARD: Sequence[Op] = join(
    SMALL,
    (
        update(1, "b"),
        keep(1, 0),
        {"op": "select", "rows": [0, 0]},
        open_batch(1),
        {"op": "save", "into": "s"},
        {"op": "load", "from": "s", "cache": "b"},
        {"op": "clone", "into": "b"},
        {"op": "extend", "other": "a", "cache": "b"},
        {"op": "free"},
        {"op": "size"},
    ),
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
    asked = [move for move in domain.moves if move["op"] != "size"]  # not of a state
    return Domain(domain.config, asked)
