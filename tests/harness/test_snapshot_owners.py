"""A snapshot is closed through the cache that made it, and a step that closes one says
so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.execution.executor import run
from tests.harness.building import draw_some, make, update
from tests.harness.misbehaving import PLAIN, Array, Cache, declare

OPERATIONS = frozenset(
    {"update", "state", "clone", "free", "snapshot", "restore", "split", "merge", "close"}
)


class Part:
    """K and V of the positions [begin, end), in the pool of one cache."""

    def __init__(self, pool: set[Part], begin: int, keys: Array, values: Array) -> None:
        self.begin, self.end = begin, begin + keys.shape[2]
        self.keys, self.values = keys.copy(), values.copy()
        pool.add(self)


class PoolCache(Cache):
    """A full cache with a pool of its own for its snapshots.

    Attributes:
        pools: all pools.
    """

    pools: list[set[Part]] = []

    def __init__(self) -> None:
        super().__init__()
        self.pool: set[Part] = set()
        self.pools.append(self.pool)

    def clone(self) -> PoolCache:
        other = PoolCache()
        other.keys, other.values = self.keys, self.values
        return other

    def free(self) -> None:
        self.keys = self.values = None

    def add(self, begin: int, keys: Array, values: Array) -> Part | None:
        return Part(self.pool, begin, keys, values) if keys.shape[2] else None

    def snapshot(self, begin: int) -> Part | None:
        begin = max(0, begin)
        if self.keys is None or self.values is None or begin >= self.offset:
            return None
        return self.add(begin, self.keys[:, :, begin:], self.values[:, :, begin:])

    def restore(self, part: Part | None, target: int) -> bool:
        if part is None:
            possible = 0 <= target <= self.offset
        else:
            possible = 0 <= target <= part.end and self.offset >= part.begin
            if possible and target > part.begin:
                self.put_back(part)
        if possible:
            self.trim(self.offset - target)
        return possible

    def put_back(self, part: Part) -> None:
        self.trim(self.offset - part.begin)
        self.update(part.keys, part.values)

    def split(self, part: Part, at: int) -> tuple[Part | None, Part | None]:
        at = min(max(at, part.begin), part.end) - part.begin
        pieces = [
            self.add(part.begin + begin, part.keys[:, :, cut], part.values[:, :, cut])
            for begin, cut in ((0, slice(0, at)), (at, slice(at, None)))
        ]
        self.use_up(part)
        return pieces[0], pieces[1]

    def merge(self, parent: Part | None, child: Part | None) -> Part | None:
        if parent is None or child is None:
            for part in filter(None, (parent, child)):
                self.use_up(part)
            return None
        if parent.end != child.begin:
            raise ValueError(f"{parent.end} is not {child.begin}")
        merged = PoolCache()
        merged.update(parent.keys, parent.values)
        keys, values = merged.update(child.keys, child.values)
        self.use_up(parent)
        self.use_up(child)
        return self.add(parent.begin, keys, values)

    def use_up(self, part: Part) -> None:
        for pool in self.pools:
            pool.discard(part)

    def close(self, part: Part) -> None:
        if part not in self.pool:
            raise ValueError("this snapshot is in the pool of another cache")
        self.pool.remove(part)


def open_backend(cache: Callable[[], Any] = PoolCache) -> Backend:
    kinds = {"layer": {"kv": Kind(OPERATIONS, PLAIN)}}
    return replace(declare(cache), contracts=kinds)


def test_a_cache_closes_its_own_snapshots_only() -> None:
    backend = open_backend()
    declared = backend.contracts["layer"]["kv"]
    for program in draw_some(300, "layer", "kv", declared):
        assert run(program, backend).divergence is None


SNAPSHOT = {"op": "snapshot", "from": 0, "into": "s0"}
IN_B = {**SNAPSHOT, "cache": "b"}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([update(2, cache="b"), IN_B], id="of another cache"),
        pytest.param(
            [update(2, cache="b"), IN_B, {"op": "free", "cache": "b"}],
            id="of a freed cache",
        ),
        pytest.param(
            [update(2), update(1, cache="b"), IN_B, {"op": "clone", "into": "b"}],
            id="of a cache whose name another has",
        ),
        pytest.param(
            [
                update(2, cache="b"),
                IN_B,
                {"op": "restore", "snapshot": "s0", "target": 2},
            ],
            id="of a cache that did not restore it",
        ),
    ],
)
def test_its_maker_closes_a_snapshot(ops: list[dict[str, Any]]) -> None:
    for last in ({"op": "close", "snapshot": "s0"}, SNAPSHOT):
        program = make(*ops, last, update(1))
        assert run(program, open_backend()).divergence is None


class Stuck(PoolCache):
    """Closes nothing."""

    def close(self, part: Part) -> None:
        raise RuntimeError("stuck")


def test_a_step_that_closes_says_which_snapshot_and_why() -> None:
    divergence = run(make(update(2), SNAPSHOT, SNAPSHOT), open_backend(Stuck)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation, divergence.step) == (
        *("error", "close"),
        2,
    )
    assert divergence.message.startswith(
        "closing snapshot s0, whose name this step gives to another snapshot: raised"
        " RuntimeError: stuck, in close (test_snapshot_owners.py:"
    )
