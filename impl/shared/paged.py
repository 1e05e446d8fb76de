"""A block manager: tables, shared prefixes, copies before writes, eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from lockstep.impl.shared.block_pool import BlockPool, list_held
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged_groups import Table, make_group
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
        published: tokens that others can hit.
    """

    def __init__(self, tokens: Sequence[int], unit: int, namespace: str | None) -> None:
        self.tokens, self.namespace = list(tokens), namespace
        self.drafts: list[int] = []
        self.hash = PrefixHash(unit, namespace)
        self.tables: list[Table] | None = None
        self.computed = self.end = self.published = 0

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
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        blocks: int,
        max_length: int,
        unit: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self.unit = unit or gcd(*(group["block"] for group in groups))
        self.blocks = BlockPool(blocks, len(groups))
        self.groups = [
            make_group(number, group, self.blocks, self.unit)
            for number, group in enumerate(groups)
        ]
        self.full_blocks = [one["block"] for one in groups if one["type"] == "full"]
        self.max_length, self.prefix_cache = max_length, prefix_cache
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
        asked = self.get(request)
        if not self.prefix_cache:
            return 0
        keys = asked.hash.extend(asked.tokens)
        most = (len(asked.tokens) - 1) // self.unit * self.unit
        found = -1
        while found != most:  # each group may shorten what the others have found
            found = most
            for group in self.groups:
                most = group.find(keys, most)
        return most

    # --- a step -------------------------------------------------------------------------

    def schedule(self, request: str, count: int) -> int | None:
        """Gives slots to the next `count` tokens; see `harness.backends.paged`."""
        one = self.get(request)
        if one in self.step:
            raise MisuseError(f"{request} is in this step already")
        tables, start = one.tables, one.computed
        if tables is None:
            start = self.match(request)
            tables = [group.claim(one.hash.keys, start) for group in self.groups]
        end = min(start + count, one.known)
        if count < 1 or end <= start:
            raise MisuseError(f"{request} has no token to compute")
        reused = [] if one.tables else [b for table in tables for b in list_held(table)]
        if not self.has_room(tables, start, end, reused):
            return None
        self.blocks.hold(reused)
        for group, table in zip(self.groups, tables, strict=True):
            self.extend(group.list_written(start, end), table, start, group.block)
        if one.tables is None:
            one.published = start
        one.tables, one.computed, one.end = tables, start, end
        del one.drafts[max(0, end - len(one.tokens)) :]
        self.step.append(one)
        return start

    def has_room(
        self, tables: Sequence[Table], start: int, end: int, reused: Sequence[int]
    ) -> bool:
        """Says whether there are blocks for a step, copies included."""
        needed, held = 0, not reused
        for group, table in zip(self.groups, tables, strict=True):
            for place in group.list_written(start, end):
                block = table[place] if place < len(table) else None
                if block is None or not self.is_own(
                    block, place, start, group.block, held
                ):
                    needed += 1
        return needed <= self.blocks.count_available(reused)

    def is_own(self, block: int, place: int, start: int, size: int, held: bool) -> bool:
        """Says whether a step from `start` on may write into a block that it finds.

        held: the request holds it already; otherwise it is about to.
        """
        references = self.blocks.references[block] + (not held)
        return references == 1 and self.blocks.filled[block] <= max(
            0, start - place * size
        )

    def extend(self, places: Sequence[int], table: Table, start: int, size: int) -> None:
        """Puts blocks where a step writes; copies those that others need as they are."""
        missing = [p for p in places if p >= len(table) or table[p] is None]
        taken = self.blocks.take(len(missing))
        for place, block in zip(missing, taken, strict=True):
            table += [None] * (place + 1 - len(table))
            table[place] = block
        for place in places:
            block = table[place]
            if block is not None and not self.is_own(block, place, start, size, True):
                [table[place]] = copied = self.blocks.take(1)
                self.copy(block, copied[0])
                self.blocks.release([block])

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
        if self.prefix_cache:
            keys = one.hash.extend(one.tokens)
            for group, table in zip(self.groups, one.tables, strict=True):
                group.publish(keys, table, one.published, settled)
            one.published = settled - settled % self.unit
        for group, table in zip(self.groups, one.tables, strict=True):
            group.pass_by(table, settled)

    def accept(
        self, request: str, kept: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        one = self.get(request)
        if one.tables is None or one in self.step or one.computed < one.known:
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
        for table in one.tables or ():
            self.blocks.release(reversed(list_held(table)))
        one.tables = None
        one.computed = one.end = one.published = 0
        if one in self.step:
            self.step.remove(one)

    def withdraw(self, one: PagedRequest) -> None:
        """Forgets the prefixes of a request, where no other holds their blocks."""
        own = {block for table in one.tables or () for block in list_held(table)}
        for entries in self.blocks.entries:
            for key in one.hash.keys:
                block = entries.get(key)
                if block is not None and self.blocks.references[block] <= (block in own):
                    self.blocks.forget(block)

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
        if one.tables is None or one in self.step or not one.computed:
            raise MisuseError(f"fork: the step of {source} is not computed")
        known = [*one.tokens, *one.drafts][: one.computed]
        if not tokens:
            raise MisuseError("fork: the new request has no token to compute")
        self.check_new(target, [*known, *tokens])
        other = PagedRequest([*known, *tokens], self.unit, one.namespace)
        other.tables = [list(table) for table in one.tables]
        other.computed = other.end = one.computed
        other.published = min(one.published, one.computed)
        for table in other.tables:
            self.blocks.hold(list_held(table))
        self.requests[target] = other
        return True

    def rewind(self, request: str, to: int, tokens: Sequence[int]) -> bool:
        one = self.get(request)
        if one.tables is None or one in self.step or not 0 < to <= one.computed:
            raise MisuseError(f"rewind: {request} to {to}")
        if not tokens:
            raise MisuseError("rewind: the request has no token to compute")
        pairs = list(zip(self.groups, one.tables, strict=True))
        if not all(group.can_go_back(table, to, one.computed) for group, table in pairs):
            return False
        for group, table in pairs:
            last = -(-to // group.block)
            self.blocks.release(reversed(list_held(table[last:])))
            del table[last:]
        one.tokens = [*one.tokens, *one.drafts][:to] + list(tokens)
        one.drafts, one.computed, one.end = [], to, to
        one.hash.cut(to)
        one.published = min(one.published, to)
        return True

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        tables = self.get(request).tables
        return [list(table) for table in tables or ()]

    def copies(self) -> list[tuple[int, int]]:
        copies, self.pending = self.pending, []
        return copies
