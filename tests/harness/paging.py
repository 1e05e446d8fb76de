"""A small, correct paged cache: groups of full layers, with blocks of one size.

The harness and the protocol of drivers are tried on it, and mistakes are planted in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from misbehaving import NumpyArrays

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.paged import Entry, Pool
from lockstep.harness.contracts import CONTRACTS

TOLD = frozenset({"pool", "entries", "events"})
MORE = {"offload", "load", "landed", "failed", "save", "restore"}
OPERATIONS = frozenset(CONTRACTS["paged"].operations) - MORE
FULL = {"type": "full", "layers": 1}
GROUPS = (
    [{**FULL, "block": 2}],
    [{**FULL, "block": 3}],
    [{**FULL, "block": 2}, {**FULL, "block": 2}],
)

Key = tuple[int, str | None, tuple[int, ...]]
"""A group, a namespace, and a prefix of whole blocks."""


class Request:
    """One request; `tables` is None while it waits."""

    def __init__(self, tokens: Sequence[int], namespace: str | None) -> None:
        self.tokens, self.namespace = list(tokens), namespace
        self.drafts: list[int] = []
        self.tables: list[list[int]] | None = None
        self.computed = self.end = 0

    @property
    def known(self) -> list[int]:
        return self.tokens + self.drafts


class Manager:
    """The blocks of all requests. A block is free, cached or referenced."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.groups = config, len(config["groups"])
        self.block = config["groups"][0]["block"]
        self.free_blocks = list(range(config["blocks"]))
        self.cached: list[int] = []
        self.references: Counter[int] = Counter()
        self.hashed: dict[Key, int] = {}
        self.keys: dict[int, Key] = {}
        self.requests: dict[str, Request] = {}
        self.step: list[Request] = []
        self.pending: list[tuple[int, int]] = []
        self.noted: list[tuple[str, Entry | None]] = []

    # --- blocks -------------------------------------------------------------------------

    def take(self) -> int:
        if not self.free_blocks:
            self.forget(self.cached.pop(0))
        block = self.free_blocks.pop()
        self.references[block] = 1
        return block

    def hold(self, block: int) -> None:
        if not self.references[block]:
            self.cached.remove(block)
        self.references[block] += 1

    def release(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            (self.cached if block in self.keys else self.free_blocks).append(block)

    def publish(self, key: Key, block: int) -> None:
        if not self.config["prefix_cache"]:
            return
        if key not in self.hashed and block not in self.keys:
            self.hashed[key], self.keys[block] = block, key
            self.noted.append(("stored", Entry(*key, block)))

    def forget(self, block: int) -> None:
        """Removes the key of a block, which is free if nobody holds it."""
        key = self.keys.pop(block)
        del self.hashed[key]
        self.noted.append(("removed", Entry(*key, block)))
        if not self.references[block]:
            self.free_blocks.append(block)

    # --- requests -----------------------------------------------------------------------

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        self.check_new(request, tokens)
        if namespace == "":
            raise ValueError("open: the namespace is empty")
        self.requests[request] = Request(tokens, namespace)

    def check_new(self, request: str, tokens: Sequence[int]) -> None:
        if request in self.requests:
            raise ValueError(f"there is a request {request} already")
        blocks = self.groups * -(-len(tokens) // self.block)
        too_long = len(tokens) > self.config["max_length"]
        if not tokens or too_long or blocks > self.config["blocks"]:
            raise ValueError(f"there is no room for {len(tokens)} tokens, ever")

    def get(self, request: str) -> Request:
        if request not in self.requests:
            raise ValueError(f"there is no request {request}")
        return self.requests[request]

    def list_keys(self, one: Request, group: int, length: int) -> list[Key]:
        """Lists the keys of the whole blocks in the first `length` tokens."""
        ends = range(self.block, length + 1, self.block)
        return [(group, one.namespace, tuple(one.tokens[:end])) for end in ends]

    def match(self, request: str) -> int:
        one = self.get(request)
        hits = [0]
        for number in range(1, (len(one.tokens) - 1) // self.block + 1):
            keys = [
                self.list_keys(one, group, number * self.block)[-1]
                for group in range(self.groups)
            ]
            if not self.config["prefix_cache"] or not all(k in self.hashed for k in keys):
                break
            hits.append(number * self.block)
        return hits[-1]

    # --- a step -------------------------------------------------------------------------

    def schedule(self, request: str, count: int) -> int | None:
        one = self.get(request)
        if one.end > one.computed or (one.tables and one.computed == len(one.known)):
            raise ValueError(f"{request} has no token to compute")
        start, tables = one.computed, one.tables
        if tables is None:
            start = self.match(request)
            tables = [
                [self.hashed[key] for key in self.list_keys(one, group, start)]
                for group in range(self.groups)
            ]
        end = min(start + count, len(one.known))
        places = range(start // self.block, -(-end // self.block))
        reused = [block for table in tables for block in table] if not one.tables else []
        needed = sum(not self.is_own(t, p, bool(reused)) for t in tables for p in places)
        room = len(self.free_blocks) + len(set(self.cached) - set(reused))
        if needed > room:
            return None
        for block in reused:
            self.hold(block)
        for table in tables:
            for place in places:
                self.extend(table, place)
        one.tables, one.computed, one.end = tables, start, end
        del one.drafts[max(0, end - len(one.tokens)) :]
        self.step.append(one)
        return start

    def is_own(self, table: Sequence[int], place: int, is_new: bool = False) -> bool:
        """Says whether a request may write to a block of its table."""
        if is_new or place >= len(table):
            return False
        return self.references[table[place]] == 1 and table[place] not in self.keys

    def extend(self, table: list[int], place: int) -> None:
        """Puts a block where a step writes; copies one that others need as it is."""
        if place == len(table):
            table.append(self.take())
        elif not self.is_own(table, place):
            old, table[place] = table[place], self.take()
            self.pending.append((old, table[place]))
            self.release(old)

    def run(self) -> None:
        for one in self.step:
            one.computed = one.end
            self.settle(one)
        self.step = []

    def settle(self, one: Request) -> None:
        """Publishes the blocks whose tokens are computed and known."""
        settled = min(one.computed, len(one.tokens))
        for group, table in enumerate(one.tables or ()):
            keys = self.list_keys(one, group, settled)
            for key, block in zip(keys, table, strict=False):
                self.publish(key, block)

    def accept(
        self, request: str, kept: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        one = self.get(request)
        if one.end > one.computed or one.computed < len(one.known):
            raise ValueError(f"{request} has tokens that are not computed")
        if not 0 <= kept <= len(one.drafts):
            raise ValueError(f"{kept} of the {len(one.drafts)} drafts of {request}")
        one.tokens += [*one.drafts[:kept], sampled]
        one.drafts, one.computed = list(drafts), len(one.tokens) - 1
        one.end = one.computed
        self.settle(one)

    # --- letting go ---------------------------------------------------------------------

    def preempt(self, request: str) -> None:
        one = self.get(request)
        self.let_go(one)
        one.drafts, one.computed, one.end = [], 0, 0

    def free(self, request: str, reuse: bool) -> None:
        one = self.get(request)
        for block in [b for table in one.tables or () for b in table if not reuse]:
            if self.references[block] == 1 and block in self.keys:
                self.forget(block)
        self.let_go(one)
        del self.requests[request]

    def let_go(self, one: Request) -> None:
        for table in one.tables or ():
            for block in reversed(table):
                self.release(block)
        one.tables = None
        self.step = [other for other in self.step if other is not one]

    def evict(self, count: int) -> int:
        evicted = self.cached[:count]
        del self.cached[:count]
        for block in evicted:
            self.forget(block)
        return len(evicted)

    def reset(self) -> bool:
        if any(one.tables is not None for one in self.requests.values()):
            return False
        self.evict(len(self.cached))
        return True

    # --- branches -----------------------------------------------------------------------

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        one = self.get(source)
        known = [*one.known[: one.computed], *tokens]
        if not tokens or one.end > one.computed or not one.computed:
            raise ValueError("fork: no token, or a step that is not computed")
        self.check_new(target, known)
        other = Request(known, one.namespace)
        other.tables = [list(table) for table in one.tables or ()]
        other.computed = other.end = one.computed
        for block in [b for table in other.tables for b in table]:
            self.hold(block)
        self.requests[target] = other
        return True

    def rewind(self, request: str, to: int, tokens: Sequence[int]) -> bool:
        one = self.get(request)
        if one.end > one.computed or not 0 < to <= one.computed or not tokens:
            raise ValueError(f"rewind: {request} to {to}")
        for table in one.tables or ():
            while len(table) > -(-to // self.block):
                self.release(table.pop())
        one.tokens, one.drafts = [*one.known[:to], *tokens], []
        one.computed = one.end = to
        return True

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> Any:
        return [list(table) for table in self.get(request).tables or ()]

    def copies(self) -> Any:
        copies, self.pending = self.pending, []
        return copies

    def pool(self) -> Any:
        return Pool(dict(self.references), list(self.free_blocks), list(self.cached))

    def entries(self) -> Any:
        return [Entry(*key, block) for key, block in self.hashed.items()]

    def events(self) -> Any:
        noted, self.noted = self.noted, []
        return noted


class Storing(Manager):
    """Stores K and V as well: (layer, block, place in it) → both of a token."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.memory: dict[tuple[int, int, int], Any] = {}

    def copies(self) -> Any:
        copies = super().copies()
        for source, target in copies:
            for (layer, block, place), pair in list(self.memory.items()):
                if block == source:
                    self.memory[layer, target, place] = pair
        return copies

    def update(self, layer: int, keys: Any, values: Any) -> Any:
        """Layer n belongs to group n: each has one."""
        tokens = iter(zip(keys[0].swapaxes(0, 1), values[0].swapaxes(0, 1), strict=True))
        for one in self.step:
            for position in range(one.computed, one.end):
                pair = tuple([np.array(each) for each in next(tokens)])
                self.memory[self.locate(one, layer, position)] = pair
        return [self.read(one, layer) for one in self.step]

    def read(self, one: Request, layer: int) -> Any:
        positions = range(one.end)
        pairs = [self.memory[self.locate(one, layer, each)] for each in positions]
        return tuple([np.stack(each, 1)[None] for each in zip(*pairs, strict=True)])

    def locate(self, one: Request, layer: int, position: int) -> tuple[int, int, int]:
        assert one.tables is not None
        number, place = divmod(position, self.block)
        return layer, one.tables[layer][number], place


def declare(cache: type[Manager], name: str = "paging", **more: Any) -> Backend:
    config = {"groups": GROUPS, "data": ("tags", "backend")}
    promise = {"config": config, "refuses": True, "tells": TOLD}
    kind = Kind(OPERATIONS, **{**promise, **more})
    return Backend(
        name=name,
        device="cpu",
        contracts={"paged": {"paged-full": kind}},
        arrays=NumpyArrays(),
        open=cache,
    )


def make() -> Backend:
    return declare(Storing)
