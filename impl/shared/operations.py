"""Defines the config values of layer caches and batches, and the operations of paged
caches."""

from collections.abc import Mapping
from typing import Any

RINGS = (*[0] * 3, 1)
"""Variants of a sliding window, with repetitions as weights; 1: a ring without a twin."""

STEP = {"step": (4, 1, 2, 3, 8, 256)}
MASKS = {**STEP, "mask_padding": (1, 4), "mask_form": ("any", "additive")}

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": MASKS,
    "rotating": {**MASKS, "variant": RINGS},
    "state": {},
    "pooled": MASKS,
}

BATCH_CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "batch-kv": {**STEP, "mask_form": ("any", "additive")},
    "batch-rotating": {**STEP, "mask_form": ("any", "additive")},
    "batch-state": {},
    "batch-list": {**STEP, "mask_form": ("any", "additive")},
}

BATCH_HELD: Mapping[str, float] = {
    "batch-kv": 4,
    "batch-rotating": 4,
    "batch-state": 2,
    "batch-list": 4,
}
"""HELD for batches: a full pool doubles its rows, its columns, or both."""

HELD: Mapping[str, float] = {"kv": 2, "rotating": 4, "state": 1, "pooled": 2}
"""Kind → maximal ratio of the memory to its content: a full buffer doubles, and a ring is
stored twice."""

PAGED_OPERATIONS = frozenset(
    {
        *("open", "match", "schedule", "run", "launch", "finish", "accept", "preempt"),
        *("free", "fork", "rewind", "evict", "reset", "update_weights"),
        *("offload", "load", "landed", "failed", "send", "receive", "save", "restore"),
    }
)
PAGED_CONFIG: Mapping[str, tuple[Any, ...]] = {
    "hash_block": (None, None, 1, 2),
    "drop_last": (False, False, False, True),
    "trees": (False, True, True),
    "extra_keys": (False, True),
    "host": (0, 2, 4, 8, 16),
    "data": ("tags", "backend"),
    "flight": (0, 0, 1, 2),
    "overlap": (False, True, True),
    "ranks": (1, 2, 4),
    "interleave": (1, 2),
    "remote": (False, True),
    "lags": (False, True),
    "lookahead": (0, 2, 1, 3, 5),
    "reads": ([], [0], [0, 0], [1], [1, 0], [2, 1]),
}
PAGED_TELLS = frozenset(
    {"pool", "entries", "events", "attend", "host_entries", "reuse", "slots"}
)
