"""Defines the paged contract's small domains: two requests, blocks of two tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.contract import Domain, read_moves
from lockstep.harness.contracts.paged.drawn import chunked, full, sliding, state

GROUPS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "paged-full": [full(2)],
    "paged-sliding": [sliding(2, 3)],
    "paged-chunked": [chunked(2, 4)],
    "paged-state": [state(2)],
    "paged-hybrid": [full(2), sliding(2, 2)],
}
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
STANDARD = SMALL + read_moves(
    "open request=a tokens=[1,1,1,1,2]; open request=b tokens=[1,1,1] namespace=x;"
    " match request=a; schedule request=c count=2; schedule request=b count=1;"
    " free request=c; evict count=256; accept request=a sampled=2;"
    " offload request=a transfer=t0; load request=b transfer=t1; landed transfer=t0;"
    " landed transfer=t1; failed transfer=t1 arrived=1; save; restore"
)
MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}
BLOCKS = {"tiny": 6, "small": 6, "standard": 5}


def get_domain(kind: str, size: str) -> Domain:
    sizes: dict[str, Sequence[Any]] = {"groups": [GROUPS[kind]], "max_length": [8]}
    sizes |= {"blocks": [BLOCKS[size]], **({"host": [4]} if size == "standard" else {})}
    return Domain(sizes, MOVES[size])
