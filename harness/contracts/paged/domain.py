"""Defines the drawn configs, and the small domains with two requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, read_moves
from lockstep.harness.contracts.paged.model import HYBRID

Group = Mapping[str, Any]


def full(block: int, layers: int = 1) -> Group:
    return {"type": "full", "block": block, "layers": layers}


def sliding(block: int, width: int, layers: int = 1) -> Group:
    return {"type": "sliding", "block": block, "width": width, "layers": layers}


def chunked(block: int, width: int, layers: int = 1) -> Group:
    return {"type": "chunked", "block": block, "width": width, "layers": layers}


def state(block: int, layers: int = 1) -> Group:
    return {"type": "state", "block": block, "layers": layers}


LAGGING: Group = {**full(2), "lags": True}

GROUPS: Mapping[str, Sequence[Sequence[Group]]] = {
    "paged-full": ([full(2)], [full(1)], [full(4, 2)], [full(3, 2)], [full(2), full(2)]),
    "paged-sliding": (
        *([sliding(2, 3)], [sliding(2, 4, 2)], [sliding(4, 3)], [sliding(1, 2)]),
        *([sliding(2, 1)], [sliding(3, 8)], [sliding(2, 3), sliding(2, 5)]),
    ),
    "paged-chunked": (
        [chunked(2, 4)],
        [chunked(1, 3, 2)],
        [chunked(2, 6)],
        [chunked(4, 4)],
    ),
    "paged-state": ([state(2)], [state(1)], [state(4)], [state(3, 2)]),
    HYBRID: (
        [full(2), sliding(2, 3)],
        [full(2), state(2)],
        [full(2), chunked(2, 4), sliding(2, 3)],
        [full(4), sliding(2, 5)],
        [full(2, 2), sliding(4, 5)],
        [sliding(2, 3), full(2), sliding(2, 6)],
        [full(1), state(4)],
        [full(2), sliding(2, 3), state(4)],
    ),
}
"""Kind → the groups that the generator draws, the simplest first."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "blocks": (12, 8, 6, 4, 16, 24, 40),
    "max_length": (24, 24, 12),
    "prefix_cache": (True, True, True, False),
    "lookahead": (0, 2, 1, 3, 2),
    "heads": (1, 2),
    "key_dim": (4, 6),
    "value_dim": (4, 6),
    "dtype": ("float32", "float16", "bfloat16"),
}

TREE_DRAFTS = (3, 5, 2)
"""The maximum numbers of drafts that are drawn if drafts form trees."""

FEW_BLOCKS = (12, 3, 4, 6, 2, 8)
"""The numbers of blocks drawn if all groups are states; a request needs few states."""
FOR_DRAFTS = (24, 64, 32, 48, 64, 24, 96)
"""Further numbers if there are states and drafts, which need a state each."""

# --- small domains ----------------------------------------------------------------------

EXPLORED: Mapping[str, Sequence[Group]] = {
    **{kind: GROUPS[kind][0] for kind in GROUPS},
    HYBRID: [full(2), sliding(2, 2)],
}
WITH_LAGGING: Mapping[str, Sequence[Sequence[Group]]] = {
    **GROUPS,
    "paged-full": (*GROUPS["paged-full"], [full(2), LAGGING], [LAGGING, full(4, 2)]),
    HYBRID: (
        *GROUPS[HYBRID],
        *([full(2), chunked(2, 4), LAGGING], [full(2), state(2), LAGGING]),
        *([state(1), full(2)], [full(4), state(2)]),
    ),
}

SHARED_OUT: Mapping[str, Sequence[Sequence[Group]]] = {
    "paged-full": ([full(4)], [full(8)], [full(4), full(8)]),
    HYBRID: ([full(4), sliding(2, 3)], [full(8), chunked(2, 4), state(4)]),
}
"""Further models for several ranks."""


def list_models(kind: str, declared: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
    """Lists the groups of the models of a kind, for values of `Kind.config`."""
    usual = WITH_LAGGING if any(declared.get("lags", ())) else GROUPS
    more = SHARED_OUT.get(kind, ()) if max(declared.get("ranks", (1,))) > 1 else ()
    return declared.get("groups", (*usual[kind], *more))


TINY = read_moves(
    "open request=a tokens=[1,1,1]; open request=b tokens=[1,1,2];"
    " schedule request=a count=9; schedule request=b count=9; run;"
    " accept request=a sampled=1; free request=a; evict count=1"
)
SMALL = TINY + read_moves(
    "accept request=b sampled=2; schedule request=a count=1; preempt request=a;"
    " free request=b reuse=false; preempt request=b;"
    " fork source=a target=c tokens=[2]; rewind request=a to=1 tokens=[2]; reset"
)
MOVES = {"tiny": TINY, "small": SMALL}


def get_domain(kind: str, size: str) -> Domain:
    groups = {"groups": [EXPLORED[kind]]}
    return Domain({**groups, "max_length": [8], "blocks": [6]}, MOVES[size])
