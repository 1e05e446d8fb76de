"""Declares the backends for the scheduler of LMDeploy's PyTorch engine.

`lmdeploy_sequences` has the adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.peers.lmdeploy_sequences import Sequences
from lockstep.impl.peers.paged import (
    OPERATIONS,
    SHARE,
    WITHDRAW,
    declare_engine,
    full,
    sliding,
    state,
)

STATE = state(16)
"""The state of a request has one slot, whatever the number of its tokens."""

ABORT = Duty(
    {"op": "free", "scheduled": [1, None]},
    "free of a scheduled request: a session ends while no inputs are made",
)
SPACE = Duty(
    {"op": "open", "named": [1, 1]}, "a request in a namespace: sequences have none"
)

CONFIG: Mapping[str, tuple[Any, ...]] = {
    "groups": ([full(2)], [full(4)], [full(1)], [full(3)]),
    "blocks": (6, 8, 5, 12, 16),
    "max_length": (24, 14, 22),
    "lookahead": (0,),
    "ahead": (1,),
    "preempts": (True,),
    "flight": (0, 1),
}
WINDOWS = {
    "groups": ([sliding(2, 3)], [sliding(2, 4)], [sliding(4, 3)], [sliding(3, 8)]),
    "blocks": (2, 3, 4),
    "prefix_cache": (False,),
    "ahead": (1, 3, 2, 8),
}
# A request that waits may begin again, which no answer of the contract says; with so many
# blocks, none waits.
STATES = {
    "groups": ([full(2), STATE], [full(4), STATE], [full(1), STATE], [full(3), STATE]),
    "blocks": (128,),
    "max_length": (16, 12),
    "hash_block": (1,),
}


KIND = Kind(
    OPERATIONS - {"preempt", "reset"} | {"launch", "finish"},
    CONFIG,
    duties=(WITHDRAW, ABORT, SPACE),
    tells=frozenset({"pool", "entries"}),
)


def lmdeploy_sequences() -> Backend:
    """Declares `Scheduler` with slots for one token after each step."""
    kinds = {
        "paged-full": KIND,
        "paged-sliding": replace(KIND, config={**CONFIG, **WINDOWS}),
        "paged-hybrid": replace(KIND, config={**CONFIG, **STATES}),
    }
    return declare_engine("lmdeploy", "lmdeploy", kinds, Sequences)


def lmdeploy_checkpoints() -> Backend:
    """Declares `Scheduler` with a checkpoint of the state at each block of an answer."""
    kinds = {"paged-hybrid": replace(KIND, config={**CONFIG, **STATES})}
    opener = partial(Sequences, interval=1)
    return declare_engine("lmdeploy", "lmdeploy-checkpoints", kinds, opener, SHARE)


def interval() -> Backend:
    """Declares the same with slots for several tokens, as by default.

    It is not registered: a request that waits again may get a block twice.
    """
    config = {**CONFIG, "ahead": (3, 2, 8)}
    kinds = {"paged-full": replace(KIND, config=config)}
    return declare_engine("lmdeploy", "interval", kinds, Sequences)
