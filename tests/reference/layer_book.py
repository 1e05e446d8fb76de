"""The notation for cases of the caches of one sequence.

`fill 4` writes the tags 10, 11, 12 and 13, `add 30 31` these; `new` goes on with a fresh
cache, `new state` or `new window=2` with another one; snapshots are still there. `see 2`
answers with what a query at position 2 sees, `holds` with the offset and the state.
`pools 2` answers with the tokens whose mean the entry is that ends at position 2.
`keep s 1` takes a snapshot from position 1 on; it is said as `1 4: 11 12 13`, which are
its label and its tags; of a window, those that a cache holds into which it is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cases import Desk, read_words, say

from lockstep.reference.kv import KVCache
from lockstep.reference.pooled import PooledCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.state import StateCache

KINDS = {
    "kv": KVCache,
    "rotating": RotatingCache,
    "state": StateCache,
    "pooled": PooledCache,
}


class LayerDesk(Desk):
    """A cache and all snapshots that were taken, by name."""

    def __init__(self, head: str) -> None:
        [self.kind], self.options = read_words(head)
        self.snapshots: dict[str, Snapshot | None] = {"none": None}
        self.do_new(self.kind, **self.options)

    def do_new(self, kind: str = "", **options: int) -> None:
        if kind or options:
            self.kind, self.options = kind or self.kind, options
        self.cache = KINDS[self.kind](**self.options)

    def do_clone(self) -> None:
        self.cache = self.cache.clone()

    def do_fill(self, count: int) -> None:
        self.cache.update(range(10, 10 + count))

    def do_add(self, *tags: int) -> None:
        self.cache.update(tags)

    def do_see(self, query: int) -> Any:
        return self.cache.visible(query)

    def do_pools(self, end: int) -> Any:
        assert isinstance(self.cache, PooledCache)
        return self.cache.get_pooled(self.cache.tokens[end])

    def do_holds(self) -> str:
        return say_held(self.cache)

    def do_restore(self, name: str, target: int) -> Any:
        return self.cache.restore(self.snapshots[name], target)

    def do_keep(self, name: str, begin: int) -> str:
        return self.name([name], [self.cache.snapshot(begin)])

    def do_says(self, name: str) -> str:
        return self.name([name], [self.snapshots[name]])

    def do_split(self, name: str, end: int, *names: str) -> str:
        return self.name(names, self.cache.split(self.snapshots[name], end))

    def do_merge(self, parent: str, child: str, name: str) -> str:
        merged = self.cache.merge(self.snapshots[parent], self.snapshots[child])
        return self.name([name], [merged])

    def do_prepare(self, *offsets: int) -> None:
        self.cache.prepare(list(offsets))

    def do_take(self) -> str:
        taken = self.cache.take()
        return self.name([f"t{number}" for number in range(len(taken))], taken)

    def name(self, names: Sequence[str], snapshots: Sequence[Snapshot | None]) -> str:
        self.snapshots |= dict(zip(names, snapshots, strict=True))
        return " / ".join(map(self.format_snapshot, snapshots)) or "-"

    def format_snapshot(self, snapshot: Snapshot | None) -> str:
        if snapshot is None:
            return "none"
        tokens = snapshot.tokens
        if self.kind == "rotating":
            restored = RotatingCache(**self.options)
            restored.restore(snapshot, snapshot.end)
            tokens = restored.state()
        return f"{snapshot.begin} {snapshot.end}: {say(tokens)}"


def say_held(cache: Any) -> str:
    return f"{cache.offset}: {say(cache.state())}"
