"""The operations and config values of the layer contract in our caches, by kind."""

from collections.abc import Mapping
from typing import Any

SNAPSHOTS = {"snapshot", "restore", "split", "merge", "close", "prepare", "take"}
ALWAYS = {"update", "state", "view", "trim", "clone", "free", *SNAPSHOTS}
STEP = {"step": (4, 1, 2, 3, 8, 256)}
MASKS = {**STEP, "mask_padding": (1, 4), "mask_form": ("any", "additive")}

OPERATIONS: Mapping[str, frozenset[str]] = {
    "kv": frozenset({*ALWAYS, "size"}),
    "rotating": frozenset({*ALWAYS, "size"}),
    "state": frozenset(ALWAYS),
}

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": MASKS,
    "rotating": MASKS,
    "state": {},
}

HELD: Mapping[str, float] = {"kv": 2, "rotating": 4, "state": 1}
"""By how many times the memory may exceed its content: a buffer that is full doubles, and
a ring is stored twice."""
