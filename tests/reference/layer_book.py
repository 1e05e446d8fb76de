"""Short forms of what the caches of one sequence hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token

Cache = TypeVar("Cache", KVCache, RotatingCache, StateCache)
Held = tuple[int, int, list[int]]


def fill(cache: Cache, tokens: int) -> Cache:
    """The cache with the tags 10, 11, … at the positions 0, 1, …"""
    cache.update(range(10, 10 + tokens))
    return cache


def get_tags(tokens: Sequence[Token]) -> list[int]:
    return [token.tag for token in tokens]


def see(cache: KVCache | RotatingCache | StateCache, query: int) -> list[int]:
    return get_tags(cache.visible(query))


def hold(snapshot: Snapshot | None) -> Held | None:
    """Label and tags of a snapshot."""
    if snapshot is None:
        return None
    return snapshot.begin, snapshot.end, get_tags(snapshot.tokens)
