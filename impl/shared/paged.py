"""A block manager: tables, shared prefixes, copies before writes, eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from lockstep.impl.shared.block_pool import BlockPool, list_held
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged_groups import Group, Table, make_group
from lockstep.impl.shared.prefix_hash import PrefixHash


class PagedRequest:
    """One request.

    Attributes:
        tokens: those that are known.
        drafts: guesses behind them.
        hash: the keys of its prefixes; of tokens only, not of drafts.
        tables: of each group; None while the request waits.
        computed: tokens that are computed.
        end: the same after the step.
        published: tokens that others can hit, a multiple of the unit.
        passed: of each group, how many blocks at the beginning nothing needs any more.
        awaited: tokens that are computed when a transfer has landed.
        transfer: its name.
    """

    def __init__(self, tokens: Sequence[int], unit: int, namespace: str | None) -> None:
        self.tokens, self.namespace = list(tokens), namespace
        self.drafts: list[int] = []
        self.hash = PrefixHash(unit, namespace)
        self.tables: list[Table] | None = None
        self.computed = self.end = self.published = self.awaited = 0
        self.passed: list[int] = []
        self.transfer: str | None = None

    @property
    def is_scheduled(self) -> bool:
        return self.end > self.computed

    @property
    def known(self) -> int:
        return len(self.tokens) + len(self.drafts)


class BlockManager:
    """The blocks of all requests, for all groups from one pool.

    Args:
        groups: of each {"type": "full", "sliding", "chunked" or "state", "block": the
            positions of a block, "width": of a window or chunk}.
        blocks: how many there are.
        max_length: the most tokens of a request.
        unit: a hit is a multiple of it; it divides each block.
        prefix_cache: requests reuse what others have computed.
        drop_last: of the longest possible hit the last unit is computed again.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        blocks: int,
        max_length: int,
        unit: int | None = None,
        prefix_cache: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.unit = unit or gcd(*(group["block"] for group in groups))
        self.blocks = BlockPool(blocks, len(groups))
        self.groups = [
            make_group(number, group, self.blocks, self.unit)
            for number, group in enumerate(groups)
        ]
        self.full_blocks = [one["block"] for one in groups if one["type"] == "full"]
        self.max_length, self.prefix_cache = max_length, prefix_cache
        self.dropped = self.unit if drop_last else 0
        self.requests: dict[str, PagedRequest] = {}
        self.step: list[PagedRequest] = []
        self.pending: list[tuple[int, int]] = []

    # --- requests -----------------------------------------------------------------------

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        self.check_new(request, tokens)
        if namespace == "":
            raise MisuseError("open: a namespace has at least one character")
        self.requests[request] = PagedRequest(tokens, self.unit, namespace)

    def check_new(self, name: str, tokens: Sequence[int]) -> None:
        if name in self.requests:
            raise MisuseError(f"there is a request {name} already")
        if not 0 < len(tokens) <= self.max_length:
            raise MisuseError(f"{len(tokens)} tokens; there may be {self.max_length}")
        needed = sum(-(-len(tokens) // block) for block in self.full_blocks)
        if needed > self.blocks.count:
            raise MisuseError(
                f"{needed} blocks are needed; there are {self.blocks.count}"
            )

    def get(self, name: str) -> PagedRequest:
        if name not in self.requests:
            raise MisuseError(f"there is no request {name}")
        return self.requests[name]

    # --- hits ---------------------------------------------------------------------------

    def match(self, request: str) -> int:
        """Returns how many tokens of a waiting request are there; one is always left."""
        return self.find_hit(self.groups, self.get(request))

    def find_hit(self, groups: Sequence[Group], one: PagedRequest) -> int:
        """Returns the longest hit that these groups allow."""
        if not self.prefix_cache:
            return 0
        keys = one.hash.extend(one.tokens)
        most = (len(one.tokens) - 1) // self.unit * self.unit
        hit = find(groups, keys, most)
        return find(groups, keys, hit - self.dropped) if self.dropped and hit else hit

    # --- a step -------------------------------------------------------------------------

    def schedule(self, request: str, count: int) -> int | None:
        """Gives slots to the next `count` tokens; see `harness.backends.paged`."""
        one = self.get(request)
        if one.is_scheduled:
            raise MisuseError(f"{request} is in this step already")
        if one.awaited:
            raise MisuseError(f"{request} waits for transfer {one.transfer}")
        tables, start = one.tables, one.computed
        if tables is None:
            start = self.match(request)
            tables = [group.claim(one.hash.keys, start) for group in self.groups]
        end = min(start + count, one.known)
        if count < 1 or end <= start:
            raise MisuseError(f"{request} has no token to compute")
        reused: list[int] = []
        if one.tables is None:
            reused = [block for table in tables for block in list_held(table)]
        plan = self.plan(tables, start, end, not reused)
        needed = sum(len(missing) + len(shared) for missing, shared in plan)
        if needed > self.blocks.count_available(reused):
            return None
        self.blocks.hold(reused)
        for table, (missing, shared) in zip(tables, plan, strict=True):
            self.extend(table, missing, shared)
        if one.tables is None:
            one.published, one.passed = start, [0] * len(tables)
        one.tables, one.computed, one.end = tables, start, end
        del one.drafts[max(0, end - len(one.tokens)) :]
        self.step.append(one)
        return start

    def plan(
        self, tables: Sequence[Table], start: int, end: int, held: bool
    ) -> list[tuple[list[int], list[int]]]:
        """Lists for each group the places in its table that a step writes and that have
        no block, and those with a block that others need as it is."""
        plan = []
        for group, table in zip(self.groups, tables, strict=True):
            missing, shared = [], []
            for place in group.list_written(start, end):
                block = table[place] if place < len(table) else None
                if block is None:
                    missing.append(place)
                elif not self.is_own(block, max(0, start - place * group.block), held):
                    shared.append(place)
            plan.append((missing, shared))
        return plan

    def is_own(self, block: int, place: int, held: bool) -> bool:
        """Says whether a step may write into a block from this place on.

        held: the request holds it already; otherwise it is about to.
        """
        references = self.blocks.references[block] + (not held)
        return references == 1 and self.blocks.filled[block] <= place

    def extend(self, table: Table, missing: Sequence[int], shared: Sequence[int]) -> None:
        """Puts blocks where a step writes; copies those that others need."""
        for place, block in zip(missing, self.blocks.take(len(missing)), strict=True):
            if place >= len(table):
                table += [None] * (place + 1 - len(table))
            table[place] = block
        for place in shared:
            block = table[place]
            assert block is not None
            [copied] = self.blocks.take(1)
            self.copy(block, copied)
            self.blocks.release([block])
            table[place] = copied

    def copy(self, source: int, target: int) -> None:
        """Copies a block before the step runs."""
        self.pending.append((source, target))

    def run(self) -> None:
        """All slots of the step are written."""
        for one in self.step:
            one.computed = one.end
            self.settle(one)
        self.step = []

    def settle(self, one: PagedRequest) -> None:
        """Publishes what is computed and known, and lets go of what nothing needs."""
        assert one.tables is not None
        settled = min(one.computed, len(one.tokens))
        if self.prefix_cache and settled >= one.published + self.unit:
            keys = one.hash.extend(one.tokens)
            for group, table in zip(self.groups, one.tables, strict=True):
                group.publish(keys, table, one.published, settled)
            one.published = settled - settled % self.unit
        for number, group in enumerate(self.groups):
            last = group.first(settled) // group.block
            if last > one.passed[number]:
                group.let_go(one.tables[number], one.passed[number], last)
                one.passed[number] = last

    def accept(
        self, request: str, kept: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        one = self.get(request)
        if one.tables is None or one.is_scheduled or one.computed < one.known:
            raise MisuseError(f"{request} has tokens that are not computed")
        if not 0 <= kept <= len(one.drafts):
            raise MisuseError(f"{kept} of the {len(one.drafts)} drafts of {request}")
        one.tokens += [*one.drafts[:kept], sampled]
        one.computed = one.end = len(one.tokens) - 1
        one.drafts = list(drafts)
        self.settle(one)

    # --- letting go ---------------------------------------------------------------------

    def preempt(self, request: str) -> None:
        one = self.get(request)
        self.let_go(one)
        one.drafts = []

    def free(self, request: str, reuse: bool) -> None:
        one = self.get(request)
        if not reuse:
            self.withdraw(one)
        self.let_go(one)
        del self.requests[request]

    def let_go(self, one: PagedRequest) -> None:
        """Releases all blocks, the last ones first, so that they are evicted first."""
        if one.is_scheduled:
            self.step.remove(one)
        for table in one.tables or ():
            self.blocks.release(reversed(list_held(table)))
        one.tables, one.transfer = None, None
        one.computed = one.end = one.published = one.awaited = 0

    def withdraw(self, one: PagedRequest) -> None:
        """Forgets the prefixes of a request, where no other holds their blocks."""
        own = {block for table in one.tables or () for block in list_held(table)}
        for entries in self.blocks.entries:
            for key in self.list_settled(one):
                block = entries.get(key)
                if block is not None and self.count_users(block) <= (block in own):
                    self.blocks.forget(block)

    def list_settled(self, one: PagedRequest) -> list[bytes]:
        """Lists the keys of what a request has computed, or is about to have."""
        settled = max(one.computed, one.awaited)
        return one.hash.extend(one.tokens)[: settled // self.unit]

    def count_users(self, block: int) -> int:
        """Counts the requests that hold a block."""
        return self.blocks.references[block]

    def evict(self, count: int) -> int:
        return self.blocks.evict(count)

    def reset(self) -> bool:
        if any(one.tables is not None for one in self.requests.values()):
            return False
        self.blocks.evict(self.blocks.count)
        return True

    # --- branches -----------------------------------------------------------------------

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        """Shares all blocks; whoever writes first into one of them copies it."""
        one = self.get(source)
        if one.tables is None or one.is_scheduled or not one.computed:
            raise MisuseError(f"fork: the step of {source} is not computed")
        known = [*one.tokens, *one.drafts][: one.computed]
        if not tokens:
            raise MisuseError("fork: the new request has no token to compute")
        self.check_new(target, [*known, *tokens])
        other = PagedRequest([*known, *tokens], self.unit, one.namespace)
        other.tables = [list(table) for table in one.tables]
        other.computed = other.end = one.computed
        other.published, other.passed = one.published, [*one.passed]
        for table in other.tables:
            self.blocks.hold(list_held(table))
        self.requests[target] = other
        return True

    def rewind(self, request: str, to: int, tokens: Sequence[int]) -> bool:
        one = self.get(request)
        if one.tables is None or one.is_scheduled or not 0 < to <= one.computed:
            raise MisuseError(f"rewind: {request} to {to}")
        if not tokens:
            raise MisuseError("rewind: the request has no token to compute")
        pairs = list(zip(self.groups, one.tables, strict=True))
        if not all(group.can_go_back(table, to, one.computed) for group, table in pairs):
            return False
        for group, table in pairs:
            group.cut(table, to)
        one.tokens = [*one.tokens, *one.drafts][:to] + list(tokens)
        one.drafts, one.computed, one.end = [], to, to
        one.hash.cut(to)
        one.published = min(one.published, to - to % self.unit)
        return True

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        tables = self.get(request).tables
        return [list(table) for table in tables or ()]

    def copies(self) -> list[tuple[int, int]]:
        copies, self.pending = self.pending, []
        return copies


def find(groups: Sequence[Group], keys: Sequence[bytes], most: int) -> int:
    """Returns the longest hit of at most `most` tokens that all groups have."""
    found = -1
    while found != most:  # each group may shorten what the others have found
        found = most
        for group in groups:
            most = group.find(keys, most)
    return most
